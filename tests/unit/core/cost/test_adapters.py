import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.adapters import DEFAULT_LOAD_MS, MOST_LOAD_MS, MOST_SLOTS, AdapterSlots
from kvmesh.core.members.worker_info import AdapterReport

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def known(slots: int = 2) -> AdapterSlots:
    adapters = AdapterSlots()
    adapters.receive(A, AdapterReport(slots, ("x",)))
    adapters.receive(B, AdapterReport(slots))
    return adapters


def test_an_adapter_costs_a_load_where_it_is_not_held_and_nothing_where_nobody_knows() -> None:
    adapters = known()
    adapters.receive(C, AdapterReport(0, ("x",)))
    adapters.use(C, "x")

    assert adapters.cold("x", (A, B, C)) == {B: DEFAULT_LOAD_MS}
    assert adapters.cold("y", (A, B, C)) == {A: DEFAULT_LOAD_MS, B: DEFAULT_LOAD_MS}
    assert adapters.held(C) == ()


def test_what_an_engine_tells_in_use_is_held_and_fewer_slots_hold_less() -> None:
    adapters = known(slots=3)
    adapters.receive(A, AdapterReport(3, ("y", "z")))
    assert adapters.held(A) == ("x", "y", "z")

    adapters.receive(A, AdapterReport(1, ("y", "z")))

    assert adapters.held(A) == ("y",)


def test_slots_beyond_any_engines_are_bounded() -> None:
    adapters = AdapterSlots()
    adapters.receive(A, AdapterReport(10**12, tuple(map(str, range(MOST_SLOTS + 5)))))
    adapters.use(A, "one more")

    assert len(adapters.held(A)) == MOST_SLOTS


def test_an_engine_that_began_anew_holds_nothing_and_one_that_left_is_unknown() -> None:
    adapters = known()

    adapters.restart(A)
    assert set(adapters.cold("x", (A,))) == {A}

    adapters.remove(A)
    assert adapters.cold("x", (A,)) == {}


def test_the_price_of_a_load_is_the_median_of_what_loads_took() -> None:
    adapters = known()

    for number in range(9):
        adapters.load(f"r{number}", 50.0)
        assert adapters.loaded(f"r{number}", 450.0)
    assert adapters.load_ms == 400.0

    adapters.load("slow", 50.0)
    assert adapters.loaded("slow", 1e9)
    adapters.load("loaded by another replica", 50.0)
    assert adapters.loaded("loaded by another replica", 10.0)

    assert (adapters.load_ms, adapters.cold("y", (B,))) == (400.0, {B: 400.0})


def test_a_load_counts_at_most_a_minute() -> None:
    adapters = AdapterSlots(0.0)
    for number in range(40):
        adapters.load(f"r{number}", 0.0)
        adapters.loaded(f"r{number}", 1e12)

    assert adapters.load_ms == MOST_LOAD_MS


def test_only_requests_that_waited_for_a_load_teach_and_only_once() -> None:
    adapters = known()
    adapters.load("r", 0.0)
    adapters.load("gone", 0.0)
    adapters.load("behind others", None)
    adapters.ended("gone")
    adapters.ended("unknown")

    assert not adapters.loaded("other", 500.0)
    assert not adapters.loaded("gone", 500.0)
    assert adapters.loaded("behind others", 500.0)
    assert adapters.load_ms == DEFAULT_LOAD_MS
    assert adapters.loaded("r", 500.0)
    assert not adapters.loaded("r", 500.0)


def test_requests_that_wait_for_loads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmesh.core.cost.adapters._MOST_LOADING", 2)
    adapters = known()
    for number in range(3):
        adapters.load(f"r{number}", 0.0)

    assert not adapters.loaded("r0", 1.0)
    assert adapters.loaded("r2", 1.0)
