import random

import msgspec
import pytest

from kvmesh.core.admission.access import Viewer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.decision_record import thin
from kvmesh.core.insight.explain import (
    HIDDEN,
    choice_for,
    formula_in_words,
    view_decision,
    why,
)
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

PROMPT = BlockHashes(list(range(1600)), 16)


def decide(*held: int, **asked: object) -> Decision:
    """Decide a prompt of 100 blocks with all workers weighed; `held` blocks are cached there."""
    scheduler = Scheduler(
        RouterOptions(),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(16),
        routed=new_approx(),
    )
    for number, blocks in enumerate(held):
        worker = WorkerId(f"w{number}")
        scheduler.workers.membership.add(worker, 0.0)
        if blocks:
            known = BlockHashes.of(PROMPT.upto(blocks)[:blocks], 16)
            scheduler.overlaps.record(worker, known, 0.0)
    request = msgspec.structs.replace(RouteRequest("r", PROMPT, 1600), **asked)
    return scheduler.explain(request, 0.0)


def test_it_says_when_nobody_holds_anything_if_all_were_weighed() -> None:
    decision = decide(0, 0)

    assert why(decision) == "no worker holds any of it; costs least of 2 workers"
    assert why(thin(decision)) == "holds none of it, but costs least of 2 workers"


def test_it_says_who_holds_more_but_costs_more() -> None:
    decision = decide(10, 50)
    other = next(one for one in decision.candidates if one.worker == "w0")
    moved = msgspec.structs.replace(decision, worker=other.worker, overlap_blocks=10)

    assert why(moved) == "costs least of 2 workers; w1 holds more (50 against 10 blocks)"


def test_it_says_which_formula_decided_in_place_of_one_that_failed() -> None:
    failed = msgspec.structs.replace(decide(0, 50), instead_of="b.py:f failed: KeyError")

    assert why(failed) == (
        "b.py:f failed: KeyError; predicted-time decided: holds 50 of 100 blocks, costs least of 2"
        " workers"
    )


def test_it_says_that_a_session_stays_where_it_is() -> None:
    kept = msgspec.structs.replace(decide(9, 0), kept=True)

    assert why(kept) == f"its session stays there; holds {kept.overlap_blocks} of its blocks"


def test_it_says_when_caches_did_not_count() -> None:
    assert why(decide(0, 50, mode="round-robin")) == "round-robin: caches did not count"


@pytest.mark.parametrize("name", sorted(COSTS))
def test_every_formula_can_be_said_in_words(name: str) -> None:
    words = formula_in_words(COSTS[name])

    assert words.startswith(f"{name} = ")
    assert "{" not in words


def test_a_tenant_that_shares_blocks_is_not_told_what_workers_hold() -> None:
    view = view_decision(decide(0, 50), router="r0", bucket="chat")

    assert choice_for(view, None) is view
    assert choice_for(view, Viewer("ann", apart=True)) is view
    reported = msgspec.json.decode(msgspec.json.encode(choice_for(view, Viewer("ann"))))
    assert reported == {
        "request_id": "r", "router": "r0", "bucket": "chat", "worker": "w1",
        "policy": view.policy, "prompt_tokens": 1600, "total_blocks": 100, "considered": 2,
        "why": HIDDEN, "candidates": [],
    }  # fmt: skip


def test_it_says_that_a_worker_at_rest_becomes_a_second_home() -> None:
    decision = decide(0, 50)
    idle = next(one for one in decision.candidates if one.worker == "w0")
    score = decision.scores[decision.candidates.index(idle)]
    moved = msgspec.structs.replace(
        decision, worker=idle.worker, chosen=idle, overlap_blocks=0, score=score
    )

    spread = "was at rest, and becomes one more home of 50 blocks that many ask for"
    assert (why(moved), why(thin(moved))) == (spread, f"costs least of 2 workers, or {spread}")
