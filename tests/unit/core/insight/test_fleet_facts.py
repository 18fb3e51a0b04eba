import random

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.fleet_facts import fleet_facts, obstacle, unplayable
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.disaggregation import PREFILL
from kvmesh.core.routing.scheduler import Scheduler

W0, W1 = WorkerId("w0"), WorkerId("w1")


def scheduler(*infos: WorkerInfo, options: RouterOptions | None = None) -> Scheduler:
    made = Scheduler(
        options or RouterOptions(),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(16),
        routed=new_approx(),
    )
    for number, info in enumerate(infos):
        worker = WorkerId(f"w{number}")
        made.workers.membership.add(worker, 0.0)
        made.workers.describe(worker, info)
    return made


SOME = WorkerInfo(total_blocks=1000)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (scheduler(SOME), "1 worker: nothing to choose"),
        (scheduler(SOME, SOME, options=RouterOptions(mode="random")), "mode is random"),
        (scheduler(SOME, SOME, options=RouterOptions(cost="lmetric")), "formula lmetric has no"),
        (scheduler(SOME, WorkerInfo(labels=frozenset({PREFILL}))), "prefill and decode"),
        (scheduler(SOME, WorkerInfo(models=("other",))), "serve different models"),
    ],
)
def test_what_no_simulator_can_play_is_told(made: Scheduler, words: str) -> None:
    assert words in obstacle(made, 0.0)


def test_a_formula_of_a_file_cannot_be_played_one_without_weights_can() -> None:
    assert unplayable(scheduler(SOME, SOME), "lmetric", 0.0) == ""
    assert "mine.py:cost is in a file" in unplayable(scheduler(SOME, SOME), "mine.py:cost", 0.0)


def test_facts_are_what_was_learned() -> None:
    made = scheduler(SOME, WorkerInfo(total_blocks=3000))
    for _ in range(400):
        made.speeds.measured(W0, 0, 0)
        made.speeds.measured(W0, 10_000, 1_000_000)
        made.speeds.measured(W1, 0, 0)
        made.speeds.measured(W1, 10_000, 2_000_000)
    made.speeds.output(W0, 10, 0.2)

    facts = fleet_facts(made, 2, 0.0)

    assert facts.speeds[0] > 1.2
    assert facts.speeds[1] < 0.9
    assert facts.prefill_token_ms == pytest.approx(0.15, rel=0.1)
    assert (facts.prefill_fixed_ms, facts.output_token_ms) == (0.0, 20.0)
    assert (facts.blocks, facts.block_size, facts.replicas) == (2000, 16, 2)


def test_a_fleet_that_showed_nothing_yet_is_taken_as_it_is_believed() -> None:
    facts = fleet_facts(scheduler(WorkerInfo(), WorkerInfo()), 1, 0.0)

    assert (facts.speeds, facts.blocks, facts.output_token_ms) == ((1.0, 1.0), 0, 0.0)
