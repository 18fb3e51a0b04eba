"""Nothing that Python code may do to the compiled loads harms the process: it is an error."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kvmesh import _native
from kvmesh._native import Booking, Loads, Ratio, WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from tests.reference.workers import loads as model
from tests.reference.workers import relative_speed

W = WorkerId("w")


def make_booking(name: str, keys: int) -> Booking:
    return Booking(name, W, "", 99, 1, 1, 0.0, 0.0, 0.0, keys=tuple(range(keys)))


def begun(*names: str) -> Any:
    """Return loads at which a booking began for each name."""
    loads = Loads(W)
    for name in names:
        loads.begin(make_booking(name, 4), 0.0)
    return loads


def begin_elsewhere(loads: Loads) -> None:
    Loads(W).begin(loads.prefilling["r"], 0.0)


def native_state() -> Any:
    return WorkerState(W, Loads(W), Ratio(), WorkerInfo(), LoadReport())


FORMULA = ("ms_per_token", 0, "*", "memory_wait_ms", "+", 1, "decode_blocks", "*", "+")


def formula(*price: object) -> object:
    native: Any = _native
    return native.Formula(price, ("failure_ms",))


MISUSES: dict[str, Callable[[Any], object]] = {
    "loads of nobody": lambda native: native.Loads(),
    "loads of a number": lambda native: native.Loads(1),
    "begin alone": lambda native: native.Loads("w").begin(),
    "begin nothing": lambda native: native.Loads("w").begin(None, 0.0),
    "begin a model of a booking": lambda native: native.Loads("w").begin(
        model.Booking("r", W, "", 1, 1, 1, 0.0, 0.0, 0.0), 0.0
    ),
    "begin at no time": lambda native: native.Loads("w").begin(make_booking("r", 1), "now"),
    "begin twice": lambda _: (one := begun("r")).begin(one.prefilling["r"], 0.0),
    "begin at two": lambda _: begin_elsewhere(begun("r")),
    "end elsewhere": lambda _: begun("r").end_prefill(begun("r").prefilling["r"]),
    "end before its prefill": lambda _: begun("r").end(begun("r").prefilling["r"]),
    "end what never began": lambda native: native.Loads("w").end_prefill(make_booking("r", 0)),
    "end nothing": lambda native: native.Loads("w").end(None),
    "end alone": lambda native: native.Loads("w").end(),
    "end keys nobody holds": lambda native: native.Loads("w").end(make_booking("r", 4)),
    "grow alone": lambda native: native.Loads("w").grow(1),
    "grow in words": lambda native: native.Loads("w").grow("1", 1),
    "correct alone": lambda native: native.Loads("w").correct(1),
    "correct in words": lambda native: native.Loads("w").correct(1, 1, "1", 1),
    "grow beyond": lambda native: native.Loads("w").grow(1 << 41, 1),
    "correct beyond": lambda native: native.Loads("w").correct(1, 1, -(1 << 70), 1),
    "a booking of nothing": lambda native: native.Booking(),
    "a booking of numbers": lambda native: native.Booking(1, "w", "", 1, 1, 1, 0.0, 0.0, 0.0),
    "a booking of words": lambda native: native.Booking("r", "w", "", "1", 1, 1, 0.0, 0.0, 0.0),
    "a booking of floats": lambda native: native.Booking("r", "w", "", 1.5, 1, 1, 0.0, 0.0, 0.0),
    "a booking too large": lambda native: native.Booking(
        "r", "w", "", 1 << 41, 1, 1, 0.0, 0.0, 0.0
    ),
    "a key below 0": lambda native: native.Booking(
        "r", "w", "", 1, 1, 1, 0.0, 0.0, 0.0, keys=(1, -1)
    ),
    "a key of text": lambda native: native.Booking(
        "r", "w", "", 1, 1, 1, 0.0, 0.0, 0.0, keys=["1"] * 99
    ),
    "keys in a number, of a booking": lambda native: native.Booking(
        "r", "w", "", 1, 1, 1, 0.0, 0.0, 0.0, keys=1
    ),
    "a key beyond a u64": lambda native: native.Loads("w").shared_blocks((1 << 64,), 1),
    "another worker": lambda _: setattr(make_booking("r", 1), "worker", "x"),
    "another prompt": lambda _: setattr(make_booking("r", 1), "prompt_tokens", 1),
    "ended by hand": lambda _: setattr(make_booking("r", 1), "prefilling", False),
    "share in words": lambda native: native.Loads("w").shared_blocks((), "1"),
    "share a number": lambda native: native.Loads("w").shared_blocks(1, 1),
    "wait in words": lambda native: native.Loads("w").wait_ms("1", 1.0),
    "count beyond": lambda native: setattr(native.Loads("w"), "active_blocks", 1 << 70),
    "count nothing": lambda native: delattr(native.Loads("w"), "active_blocks"),
    "other bookings": lambda native: setattr(native.Loads("w"), "prefilling", {}),
    "a ratio of words": lambda native: native.Ratio("1", "2"),
    "fold words": lambda native: native.Ratio().fold("1", 1.0, 1.0),
    "age in words": lambda native: native.Ratio().age("1"),
    "a state of a model's loads": lambda native: native.WorkerState(
        "w", model.Loads(W), Ratio(), None, None
    ),
    "a state of a model's ratio": lambda native: native.WorkerState(
        "w", Loads(W), relative_speed.Ratio(), None, None
    ),
    "a state without loads": lambda _: setattr(native_state(), "loads", model.Loads(W)),
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
            state.loads.begin(make_booking("r", 40), 1.0)
            state.gaps = (1, 2)
            state.loads = Loads(W)
            assert formula(*FORMULA)

    live()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    live()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert after - before < 10_000
