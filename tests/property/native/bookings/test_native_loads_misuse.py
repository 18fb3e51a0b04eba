"""Nothing that Python code may do to the compiled loads harms the process: it is an error."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvmesh import _native
from kvmesh._native import WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences, new_speeds
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from tests.property.support.memory import assert_gives_back

W = WorkerId("w")


def booked(*names: str) -> Any:
    """Return the loads of a worker at which a booking began for each name."""
    sequences = new_sequences(16)
    for name in names:
        sequences.add(name, W, Demand(99, 1, keys=tuple(range(40))), 0.0)
    return sequences.loads(W)


def booking() -> Any:
    return booked("r").prefilling["r"]


def ratio() -> Any:
    return new_speeds().prefill_ratio(W)


def native_state() -> Any:
    return WorkerState(W, booked("r"), ratio(), WorkerInfo(), LoadReport())


FORMULA = ("ms_per_token", 0, "*", "memory_wait_ms", "+", 1, "decode_blocks", "*", "+")


def formula(*price: object) -> object:
    native: Any = _native
    return native.Formula(price, ("failure_ms",))


MISUSES: dict[str, Callable[[Any], object]] = {
    "loads of one's own": lambda native: native.Loads(W),
    "a booking of one's own": lambda native: native.Booking(),
    "a ratio of one's own": lambda native: native.Ratio(),
    "steps of one's own": lambda native: native.StepTimes(),
    "another worker": lambda _: setattr(booking(), "worker", "x"),
    "another prompt": lambda _: setattr(booking(), "prompt_tokens", 1),
    "ended by hand": lambda _: setattr(booking(), "prefilling", False),
    "wait in words": lambda _: booked().wait_ms("1", 1.0),
    "count": lambda _: setattr(booked(), "active_blocks", 1),
    "count nothing": lambda _: delattr(booked(), "active_blocks"),
    "other bookings": lambda _: setattr(booked(), "prefilling", {}),
    "a state of a stranger's loads": lambda native: native.WorkerState(
        "w", SimpleNamespace(worker=W), ratio(), None, None
    ),
    "a state of a stranger's ratio": lambda native: native.WorkerState(
        "w", booked(), SimpleNamespace(factor=1.0), None, None
    ),
    "a state without loads": lambda _: setattr(native_state(), "loads", SimpleNamespace(worker=W)),
    "a state that lost its loads": lambda _: delattr(native_state(), "loads"),
    "a formula of nothing": lambda _: formula(),
    "a formula in a list": lambda native: native.Formula([1.0], ("failure_ms",)),
    "a formula of two": lambda _: formula(1.0, 2.0),
    "an operator alone": lambda _: formula("+"),
    "an operator of one": lambda _: formula(1.0, "*"),
    "what is kept of nothing": lambda _: formula("=own", 1.0),
    "what was not kept": lambda _: formula("own"),
    "too much kept": lambda _: formula(1.0, *(f"={number}" for number in range(9))),
    "a term nobody knows": lambda _: formula("luck"),
    "a term without a name": lambda _: formula(""),
    "a term of bytes": lambda _: formula(b"wait_ms"),
    "a term of half a character": lambda _: formula("\ud800"),
    "a negative weight": lambda _: formula(-1),
    "a weight far away": lambda _: formula(32),
    "a weight beyond": lambda _: formula(1 << 70),
    "a formula too deep": lambda _: formula(*(1.0,) * 40, *("+",) * 39),
    "a formula alone": lambda native: native.Formula((1.0,)),
    "a formula whose failure is none": lambda native: native.Formula((1.0,), ("luck",)),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error(misuse: str) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, OverflowError, AttributeError)):
        MISUSES[misuse](_native)


def test_loads_and_states_give_their_memory_back() -> None:
    def live() -> None:
        for _ in range(200):
            state = native_state()
            state.gaps = (1, 2)
            state.loads = booked()
            assert formula(*FORMULA)

    assert_gives_back(live)
