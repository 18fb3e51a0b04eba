"""Nothing that Python code may do to the compiled bookings harms the process: it is an error."""

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvmesh import _native
from kvmesh._native import ActiveSequences, Loads
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences
from tests.property.support.memory import assert_gives_back

W, OTHER = WorkerId("w"), WorkerId("other")


class Strange:
    """Equal to everything, and a nuisance when it is asked, or goes."""

    def __init__(self, do: Callable[[], object], like: object = None) -> None:
        self.do: Callable[[], object] | None = do
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        if self.do is not None:
            self.do()
        return False

    def __del__(self) -> None:
        if self.do is not None:
            self.do()


def booked(*names: str, **wishes: Any) -> Any:
    """Return sequences with a booking for each name."""
    sequences = new_sequences(16)
    for name in names:
        demand = Demand(1024, 80, 40, keys=(1, 2, 3, 4), **wishes)
        assert sequences.add(name, W, demand, 1.0)
    return sequences


MISUSES: dict[str, Callable[[Any], object]] = {
    "sequences of nothing": lambda native: native.ActiveSequences(),
    "sequences without statistics": lambda native: native.ActiveSequences(16),
    "no block size": lambda native: native.ActiveSequences(0, statistics=dict),
    "a block size in words": lambda native: native.ActiveSequences("16", statistics=dict),
    "blocks too large": lambda native: native.ActiveSequences(1 << 21, statistics=dict),
    "add alone": lambda _: booked().add(),
    "add too much": lambda _: booked().add("r", W, Demand(1, 1), 0.0, "", 1),
    "add in other words": lambda _: booked().add("r", W, Demand(1, 1), 0.0, ownr=""),
    "add a name twice": lambda _: booked().add("r", W, Demand(1, 1), 0.0, request_id="r"),
    "add a number": lambda _: booked().add(1, W, Demand(1, 1), 0.0),
    "add at a number": lambda _: booked().add("r", 1, Demand(1, 1), 0.0),
    "add of a number": lambda _: booked().add("r", W, Demand(1, 1), 0.0, owner=1),
    "add nothing": lambda _: booked().add("r", W, None, 0.0),
    "add at no time": lambda _: booked().add("r", W, Demand(1, 1), "now"),
    "add words": lambda _: booked().add("r", W, Demand(cast("int", "1"), 1), 0.0),
    "add a key of text": lambda _: booked().add("r", W, Demand(1, 1, keys=cast("Any", "k")), 0.0),
    "add a large key": lambda _: booked().add("r", W, Demand(1, 1, keys=(1 << 64,)), 0.0),
    "a first token of a number": lambda _: booked().first_token(1, 0.0),
    "a first token at no time": lambda _: booked().first_token("r", None),
    "grow a number": lambda _: booked().grow(1, 1, 0.0),
    "grow in words": lambda _: booked("r").grow("r", "1", 0.0),
    "grow by a part": lambda _: booked("r").grow("r", 1.5, 0.0),
    "foresee nothing": lambda _: booked().foresee(None, 1),
    "foresee what is no booking": lambda _: booked().foresee(SimpleNamespace(request_id="r"), 1),
    "foresee words": lambda _: booked("r").foresee(booked("r").bookings["r"], "1"),
    "finish a number": lambda _: booked().finish(1),
    "settle in words": lambda _: booked("r", streams=False).settle(0.0, lambda _: "fast"),
    "settle by a number": lambda _: booked("r", streams=False).settle(0.0, 1),
    "correct a number": lambda _: booked().correct(1, 1, 1, 1),
    "correct in words": lambda _: booked().correct(W, "1", 1, 1),
    "resize to nothing": lambda _: booked().resize(0),
    "resize in words": lambda _: booked().resize("16"),
    "renew a number": lambda _: booked().renew(1, 0.0),
    "renew numbers": lambda _: booked().renew([1], 0.0),
    "expire in words": lambda _: booked().expire("now"),
    "remove a number": lambda _: booked().remove_worker(1),
    "remove an owner of numbers": lambda _: booked().remove_owner(1),
    "owned by a number": lambda _: booked().owned(1),
    "loads of a number": lambda _: booked().loads(1),
    "keys of a number": lambda _: booked().sharing_keys(1),
    "other bookings": lambda _: setattr(booked(), "bookings", {}),
    "another size": lambda _: setattr(booked(), "block_size", 1),
    "arrivals in words": lambda native: native.Arrivals().fold("now"),
    "a rate in words": lambda native: native.Arrivals().per_ms("now"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error(misuse: str) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, OverflowError, AttributeError)):
        MISUSES[misuse](_native)


def test_a_refused_demand_books_nothing() -> None:
    sequences = booked("r1")
    before = sequences.statistics()

    with pytest.raises(TypeError):
        sequences.add("r2", W, Demand(cast("int", "1"), 1), 2.0)

    assert sequences.statistics() == before


NUISANCES: dict[str, Callable[[ActiveSequences], object]] = {
    "finish": lambda sequences: [sequences.finish(one.request_id) for one in sequences.owned()],
    "first token": lambda sequences: [
        sequences.first_token(one.request_id, 2.0) for one in sequences.owned()
    ],
    "remove the worker": lambda sequences: sequences.remove_worker(W),
    "remove the owner": lambda sequences: sequences.remove_owner(""),
    "forget all": lambda sequences: sequences.bookings.clear(),
    "add": lambda sequences: sequences.add("new", W, Demand(99, 9, keys=(7, 8)), 1.0),
    "expire": lambda sequences: sequences.expire(1e9),
    "collect": lambda _: gc.collect(0),
}


@pytest.mark.parametrize("nuisance", NUISANCES)
def test_who_is_asked_for_a_speed_may_do_anything(nuisance: str) -> None:
    sequences = booked("r1", "r2", "r3", streams=False)
    sequences.add("elsewhere", OTHER, Demand(10, 10, streams=False), 1.0)

    sequences.settle(5.0, lambda _: (NUISANCES[nuisance](sequences), 0.0)[1])

    check(sequences)


@pytest.mark.parametrize("nuisance", NUISANCES)
@pytest.mark.parametrize("ending", ["first_token", "finish", "remove_worker", "forget", "clear"])
def test_what_a_booking_lets_go_may_do_anything(nuisance: str, ending: str) -> None:
    sequences = new_sequences(16)
    for number in range(4):
        hashes = cast("Any", Strange(lambda: NUISANCES[nuisance](sequences)))
        sequences.add(f"r{number}", W, Demand(1024, 80, keys=(1, 2, 3), hashes=hashes), 1.0)
        del hashes

    match ending:
        case "first_token":
            sequences.first_token("r1", 2.0)
        case "finish":
            sequences.finish("r1")
        case "remove_worker":
            sequences.remove_worker(W)
        case "forget":
            del sequences.bookings["r2"]
        case _:
            sequences.bookings.clear()
    check(sequences)
    sequences.remove_worker(W)

    check(sequences)


@pytest.mark.parametrize("nuisance", NUISANCES)
def test_strangers_among_the_bookings_may_do_anything(nuisance: str) -> None:
    sequences = booked("r1", "r2", streams=False)
    bookings: Any = sequences.bookings
    doing: list[None] = []

    def disturb() -> None:
        if not doing:
            doing.append(None)
            NUISANCES[nuisance](sequences)
            doing.clear()

    strangers = [Strange(disturb, like) for like in ("r3", "r4", "r1")]
    for one in strangers:
        bookings[one] = "no booking"
    sequences.add("r3", W, Demand(160, 80, keys=(1, 5), streams=False), 1.0)
    sequences.add("r4", W, Demand(160, 80), 1.0)
    for name in ("r1", "r3", "r4"):
        sequences.first_token(name, 2.0)
        sequences.grow(name, 50, 2.0)
        sequences.finish(name)
    sequences.resize(4)
    assert sequences.owned("nobody") == []
    sequences.expire(1e6)
    for one in strangers:
        one.do = None
        bookings.pop(one, None)

    check(sequences)


def check(sequences: ActiveSequences) -> None:
    """Ask for all that there is to see, and end it."""
    sequences.statistics()
    for worker in (W, OTHER):
        loads = sequences.loads(worker)
        assert len(loads.prefilling) == loads.waiting_requests
        assert sum(loads.shared.values()) >= 0
    for booking in sequences.owned():
        repr((booking, booking.keys, booking.hashes))
    sequences.settle(1e9, lambda _: 0.0)


def test_sequences_that_hold_themselves_are_collected() -> None:
    class Statistics:
        owner: object = None

    native: Any = _native
    statistics: Any = Statistics()
    sequences = statistics.owner = native.ActiveSequences(16, statistics=statistics)
    sequences.add("r", W, Demand(160, 80, keys=(1,)), 1.0)
    gone = weakref.ref(statistics)

    del sequences, statistics
    gc.collect()

    assert gone() is None


def test_loads_outlive_their_sequences() -> None:
    sequences = booked("r1", "r2", streams=False)
    loads, booking = sequences.loads(W), sequences.bookings["r1"]

    del sequences
    gc.collect()

    assert list(loads.prefilling) == ["r1", "r2"]
    del loads
    assert (booking.request_id, booking.keys) == ("r1", (1, 2, 3, 4))


def test_a_booking_whose_loads_are_gone_has_ended() -> None:
    sequences = booked("r1")
    booking = sequences.bookings["r1"]
    sequences.bookings.clear()
    sequences.remove_worker(W)
    sequences.bookings["r1"] = booking

    sequences.grow("r1", 100, 2.0)
    sequences.foresee(booking, 3)
    assert sequences.first_token("r1", 2.0) is None
    assert sequences.finish("r1") is booking
    assert isinstance(sequences.loads(W), Loads)


def test_sequences_give_their_memory_back() -> None:
    def live() -> None:
        for number in range(100):
            sequences = booked(*(f"r{one}" for one in range(20)), streams=bool(number % 2))
            sequences.add("x", W, Demand(999, 9, keys=tuple(range(60))), 1.0)
            sequences.first_token("r3", 2.0)
            sequences.settle(3.0, lambda _: 0.0)
            sequences.grow("r4", 300, 4.0)
            sequences.finish("r5")
            sequences.remove_owner("nobody")
            if number % 3:
                sequences.remove_worker(W)
            with pytest.raises(TypeError):
                sequences.add("y", W, Demand(1, 1, keys=cast("Any", ("k",) * 99)), 1.0)

    assert_gives_back(live)
