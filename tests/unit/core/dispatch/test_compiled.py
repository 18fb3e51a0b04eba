"""The compiled way of requests where it is none, and what it leaves to `Dispatch`."""

import random
from typing import Any

import pytest

from kvmesh.compiled import CORE, NATIVE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch import compiled
from kvmesh.core.dispatch.compiled import CompiledDispatch, Placed
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.predictions import AnswerSeen, Doubt
from kvmesh.core.members.membership import Membership
from kvmesh.core.overlap.approx import new_approx
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.info import WorkerInfo
from kvmesh.core.workers.sequences import new_sequences

needs_native = pytest.mark.skipif(NATIVE is None, reason=CORE)
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"long " * 30)


def dispatch_to(*workers: str, **options: Any) -> Dispatch:
    """Return what decides among workers."""
    scheduler = Scheduler(
        RouterOptions(block_size=4, **options),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(4),
        routed=new_approx(thinned=True),
    )
    for worker in workers:
        scheduler.workers.membership.add(WorkerId(worker), 0.0)
    log = DecisionLog(capacity=8, whole_per_s=0)
    return Dispatch(scheduler, log, lambda: 0.0, doubt_nobody, follows_events=True)


def doubt_nobody(worker: WorkerId, doubt: Doubt) -> None:
    raise AssertionError((worker, doubt))


def decide(one: CompiledDispatch, name: str = "r", body: bytes = BODY) -> Placed | None:
    """Return what becomes of a chat."""
    assert NATIVE is not None
    scanned = NATIVE.scan(body, True)
    assert scanned is not None
    return one.decide(scanned, None, name.encode(), "", 1.0)


def test_there_is_no_compiled_way_without_a_compiled_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "NATIVE", None)

    with pytest.raises(RuntimeError, match="no compiled core"):
        CompiledDispatch(dispatch_to("w"))


@needs_native
def test_nobody_to_choose_is_the_affair_of_dispatch() -> None:
    assert decide(CompiledDispatch(dispatch_to())) is None


@needs_native
@pytest.mark.parametrize("options", [{"cost": "dynamo"}, {"temperature": 0.5}])
def test_a_policy_that_is_not_compiled_is_the_affair_of_dispatch(options: dict[str, Any]) -> None:
    assert decide(CompiledDispatch(dispatch_to("w", **options))) is None


@needs_native
def test_a_prompt_that_is_no_plain_text_is_the_affair_of_dispatch() -> None:
    media = b'[{"type":"image_url","image_url":{"url":"data:,"}}]'
    body = b'{"model":"m","messages":[{"role":"user","content":%b}]}' % media

    assert decide(CompiledDispatch(dispatch_to("w")), body=body) is None


@needs_native
def test_of_a_turn_nothing_is_held_against_what_events_told() -> None:
    placed = decide(CompiledDispatch(dispatch_to("w", mode="round-robin")))

    assert placed is not None
    assert (placed.told_tokens, placed.record.by_cache, placed.record.estimated) == (
        -1,
        False,
        True,
    )


@needs_native
def test_what_the_engine_found_cached_is_held_against_what_was_predicted() -> None:
    dispatch = dispatch_to("w")
    judged: list[tuple[WorkerId, AnswerSeen, float]] = []
    dispatch.judge = lambda *seen: judged.append(seen)  # type: ignore[method-assign]
    one = CompiledDispatch(dispatch)
    first, second = decide(one, "r1"), decide(one, "r2")
    assert first is not None
    assert second is not None

    one.finish(first, 200, None, 2.0)
    one.finish(second, 200, Usage(165, 5, 100), 3.0)

    ((worker, answer, now),) = judged
    predicted = second.record.overlap_blocks * 4
    assert predicted > 100
    assert (worker, now, answer.cached, answer.predicted) == ("w", 3.0, 100, predicted)
    assert answer.told is None


@needs_native
def test_a_request_to_go_on_with_is_what_dispatch_would_have_made() -> None:
    one = CompiledDispatch(dispatch_to("w"))
    placed = decide(one)
    assert placed is not None

    twin = one.continued(placed)

    assert (twin.request.request_id, twin.visible_id, twin.waiting) == ("r", b"r", True)
    assert twin.decision is not None
    assert twin.decision.worker == "w"


@needs_native
def test_a_whole_answer_ends_the_prefill_of_a_late_prompt() -> None:
    dispatch = dispatch_to("w")
    scheduler = dispatch.scheduler
    scheduler.workers.describe(WorkerId("w"), WorkerInfo(caches_late=True))
    one = CompiledDispatch(dispatch)
    placed = [decide(one, name, BODY.replace(b"long", name.encode())) for name in ("r1ng", "r2ng")]
    assert scheduler.late.waiting
    first = placed[0]
    assert first is not None

    one.finish(first, 200, None, 2.0)

    assert not scheduler.late.waiting
