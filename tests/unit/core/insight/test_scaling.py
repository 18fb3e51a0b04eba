import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.scaling import (
    ScalingOptions,
    WorkerUse,
    drain_costs,
    saturation,
)

OPTIONS = ScalingOptions(backlog_s=2.0, target=0.8)


def use(name: str = "w", **facts: float) -> WorkerUse:
    return WorkerUse(worker=WorkerId(name), **facts)  # type: ignore[arg-type]


def test_each_cause_is_a_share_of_what_there_is() -> None:
    workers = [
        use("a", capacity_tokens=1000, used_tokens=600, live_tokens=900, backlog_s=1.0),
        use("b", capacity_tokens=3000, used_tokens=200, live_tokens=100, requests=3, slots=4),
    ]

    found = saturation(workers, OPTIONS, waiting_tokens=2000)

    assert found.workers == 2
    assert found.share == {
        "backlog": 0.25,
        "memory": 0.2,
        "programs": 0.75,
        "slots": 0.75,
        "held": 0.0,
    }
    assert found.wanted["programs"] == pytest.approx(2 * 0.75 / 0.8)


def test_held_prompts_are_work_for_all_workers_together() -> None:
    workers = [use("a", per_token_s=0.001), use("b", per_token_s=0.003)]

    found = saturation(workers, OPTIONS, held_tokens=8000)

    # 16 s of prefill of one worker, of whom two may have 2 s each.
    assert found.share["held"] == pytest.approx(4.0)
    assert found.wanted["held"] == pytest.approx(16.0 / 2.0 / 0.8)


def test_unusable_workers_count_for_nothing() -> None:
    full = use("a", capacity_tokens=10, used_tokens=10, backlog_s=9.0, usable=False)

    found = saturation([full, use("b", capacity_tokens=10)], OPTIONS)

    assert found.workers == 1
    assert found.share == {"backlog": 0.0, "memory": 0.0, "programs": 0.0, "held": 0.0}


tokens = st.integers(0, 1 << 40)
seconds = st.floats(0.0, 1e6)
uses = st.builds(
    WorkerUse,
    worker=st.text(max_size=3).map(WorkerId),
    usable=st.booleans(),
    capacity_tokens=tokens,
    used_tokens=tokens,
    live_tokens=tokens,
    backlog_s=seconds,
    per_token_s=seconds,
    requests=st.integers(0, 1000),
    slots=st.integers(0, 1000),
)
fleets = st.lists(uses, max_size=6, unique_by=lambda one: one.worker)


@given(fleets, tokens, tokens)
def test_so_many_workers_as_are_wanted_would_be_as_full_as_they_shall_be(
    workers: list[WorkerUse], waiting: int, held: int
) -> None:
    found = saturation(workers, OPTIONS, waiting_tokens=waiting, held_tokens=held)

    assert set(found.share) <= {"backlog", "memory", "programs", "slots", "held"}
    for cause, share in found.share.items():
        assert share >= 0.0
        assert math.isfinite(share)
        assert found.wanted[cause] * OPTIONS.target == pytest.approx(share * found.workers)


def test_the_cheapest_worker_to_lose_keeps_least_that_comes_back() -> None:
    workers = [
        use("chats", used_tokens=5000, per_token_s=0.001),
        use("agents", live_tokens=90_000, used_tokens=10, per_token_s=0.001),
        use("behind", backlog_s=20.0, per_token_s=0.001),
        use("idle", per_token_s=0.001),
        use("new"),
    ]

    costs = drain_costs(workers)

    assert list(costs) == ["idle", "new", "chats", "behind", "agents"]
    assert costs[WorkerId("chats")] == pytest.approx(5.0)
    assert costs[WorkerId("agents")] == pytest.approx(90.0)


@given(fleets)
def test_every_worker_has_a_place_and_costs_never_fall(workers: list[WorkerUse]) -> None:
    costs = drain_costs(workers)

    assert set(costs) == {one.worker for one in workers}
    assert list(costs.values()) == sorted(costs.values())


@pytest.mark.parametrize(("waiting", "held", "wanted"), [(1, 0, 1.0), (0, 1, 1.0), (0, 0, 0.0)])
def test_without_any_worker_what_waits_wants_one(waiting: int, held: int, wanted: float) -> None:
    found = saturation([], OPTIONS, waiting_tokens=waiting, held_tokens=held)

    assert (found.workers, found.share) == (0, {})
    assert sum(found.wanted.values()) == wanted
