import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.scaling import (
    ScalingOptions,
    WorkerUse,
    drain_costs,
    read_price,
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
    alone_tokens=st.floats(0.0, 1e12),
    price=st.one_of(st.just(0.0), st.floats(1e-6, 1e9)),
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


def test_an_engine_that_alone_keeps_what_is_asked_for_is_not_free() -> None:
    workers = [
        use("prefixes", alone_tokens=9000.0, per_token_s=0.001),
        use("chats", used_tokens=5000, alone_tokens=2000.0, per_token_s=0.001),
    ]

    costs = drain_costs(workers)

    assert costs == pytest.approx({"chats": 5.0, "prefixes": 9.0})


def test_of_what_costs_as_much_to_lose_the_dearer_leaves_first() -> None:
    workers = [
        use("cheap", used_tokens=1000, per_token_s=0.001, price=1.0),
        use("dear", used_tokens=1000, per_token_s=0.001, price=3.0),
        use("untold", used_tokens=1000, per_token_s=0.001),
        use("idle", price=1.0),
        use("idle and dear", price=3.0),
    ]

    costs = drain_costs(workers)

    assert list(costs) == ["idle and dear", "idle", "dear", "untold", "cheap"]
    assert [costs[WorkerId(one)] for one in ("dear", "untold", "cheap")] == pytest.approx(
        [2 / 3, 1.0, 2.0]
    )


@pytest.mark.parametrize(
    ("labels", "price"),
    [
        ([], 0.0),
        (["gpu:h100", "kvmesh/price/2.5"], 2.5),
        (["kvmesh/price/3", "kvmesh/price/2"], 2.0),
        (["kvmesh/price/3", "kvmesh/price/nan"], None),
        *((["kvmesh/price/" + text], None) for text in ("", "0", "-2", "inf", "1e999", "1e-7")),
    ],
)
def test_a_price_is_a_label(labels: list[str], price: float | None) -> None:
    assert read_price(labels) == price


@given(fleets, st.floats(0.01, 100.0))
def test_the_unit_of_prices_changes_nothing(workers: list[WorkerUse], unit: float) -> None:
    others = [msgspec.structs.replace(one, price=one.price * unit) for one in workers]

    assert drain_costs(others) == pytest.approx(dict(drain_costs(workers)))


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
