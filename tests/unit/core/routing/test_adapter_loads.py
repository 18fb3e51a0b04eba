"""LoRA adapters in the decision: where one must be loaded first, that costs its time."""

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.adapters import DEFAULT_LOAD_MS
from kvmesh.core.members.worker_info import AdapterReport, LoadReport
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.routing.weighing import load_tokens
from tests.unit.core.routing.scheduling import (
    W1,
    W2,
    W3,
    decide,
    make_request,
    make_scheduler,
    store,
)

SLOTS = 2


def reported(scheduler: Scheduler, worker: WorkerId, *names: str) -> None:
    report = LoadReport(adapters=AdapterReport(SLOTS, names))
    scheduler.workers.report(worker, report)


def schedule(scheduler: Scheduler, request_id: str, adapter: str, now: float = 0.0) -> Decision:
    family = len(request_id) * 1000 + ord(request_id[0])
    request = make_request(request_id, family=family, model=adapter, adapter=adapter)
    return decide(scheduler, request, now)


@pytest.mark.parametrize("cost", ["lmetric", "preble", "predicted-time", "prefill-decode"])
def test_an_idle_worker_that_holds_the_adapter_is_chosen(cost: str) -> None:
    scheduler = make_scheduler(W1, W2, W3, cost=cost)
    for worker in (W1, W2, W3):
        reported(scheduler, worker, *(["poet"] if worker == W2 else []))

    decisions = [scheduler.explain(make_request("a", adapter="poet"), 0.0)]
    decisions.append(schedule(scheduler, "b", "poet"))

    assert ([one.worker for one in decisions], decisions[1].chosen.adapter_ms) == ([W2, W2], 0.0)


def test_the_line_and_the_score_say_what_a_load_costs() -> None:
    scheduler = make_scheduler(W1, W2)
    reported(scheduler, W1, "poet")
    reported(scheduler, W2)

    decision = scheduler.explain(make_request("r", adapter="poet"), 0.0)
    costs = dict(zip((one.worker for one in decision.candidates), decision.scores, strict=True))

    held, cold = (
        next(one for one in decision.candidates if one.worker == each) for each in (W1, W2)
    )
    assert costs[W2] - costs[W1] == pytest.approx(DEFAULT_LOAD_MS, rel=0.01)
    assert cold.uncached_tokens - held.uncached_tokens == load_tokens(100.0, cold.ms_per_token)
    assert "(of it 100 ms to load the adapter)" in decision.formula_line(W2)
    assert "adapter" not in decision.formula_line(W1)


def test_what_was_sent_is_held_and_pushes_out_what_was_unused_longest() -> None:
    scheduler = make_scheduler(W1)
    reported(scheduler, W1)

    loads = [
        schedule(scheduler, name * 2, adapter).chosen.adapter_ms
        for name, adapter in zip("abcde", ("x", "y", "x", "z", "y"), strict=True)
    ]

    assert loads == [100.0, 100.0, 0.0, 100.0, 100.0]
    assert scheduler.workers.adapters.held(W1) == ("z", "y")


def test_first_tokens_teach_how_long_a_load_takes_and_not_how_fast_the_worker_is() -> None:
    scheduler = make_scheduler(W1)
    reported(scheduler, W1)
    before = scheduler.speeds.ms_per_token(W1)

    for number in range(9):
        now = 100.0 * number
        chosen = schedule(scheduler, f"r{number}", f"adapter {number}", now).chosen
        load = load_tokens(chosen.adapter_ms, chosen.ms_per_token)
        usual_ms = chosen.ms_per_token * (chosen.uncached_tokens - load + chosen.step_tokens)
        scheduler.first_token(f"r{number}", now + (usual_ms + 750.0) / 1000.0)
        scheduler.finish(f"r{number}", now + 3.0)

    assert scheduler.workers.adapters.load_ms == pytest.approx(750.0)
    assert scheduler.speeds.ms_per_token(W1) == before


def test_what_is_booked_is_what_of_the_prompt_is_not_cached() -> None:
    scheduler = make_scheduler(W1)
    reported(scheduler, W1)
    store(scheduler, W1, 10)

    decision = decide(scheduler, make_request("r", blocks=10, adapter="poet"))
    booking = scheduler.sequences.bookings["r"]

    assert decision.chosen.adapter_ms == DEFAULT_LOAD_MS
    assert booking.uncached_tokens == booking.prompt_tokens - 10 * 16
