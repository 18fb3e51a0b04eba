"""The fold of messages: where it is used, and what it does not take."""

import gc
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from kvmesh._native import MessageFold, Peer
from kvmesh.core.routing.event_fold import as_name_key
from kvmesh.core.routing.peer_bookings import new_message_fold
from kvmesh.errors import CodecError
from tests.property.support.records import bare, failed, message, named, placed
from tests.property.support.replica import Replica

AMOUNTS = (40, 160, 120, 5)


def fold_of(replica: Replica) -> MessageFold:
    return new_message_fold(replica.scheduler, replica.events())


def test_messages_of_another_epoch_or_format_are_left_to_others() -> None:
    replica = Replica("w")
    fold, peer = fold_of(replica), Peer("p", 5, 0.0)

    for data in (
        message(epoch=6),
        message(epoch=4),
        b"",
        b"\x02" + message()[1:],
        message(bare(9)),
    ):
        assert fold.fold(peer, data, 0.0) is None

    assert (peer.next_seq, fold.applied, fold.gaps) == (1, 0, 0)
    assert fold.fold(peer, message(named(0, "w"), epoch=5), 0.0)
    assert (peer.next_seq, fold.applied) == (2, 1)


@pytest.mark.parametrize(
    "args",
    [
        (),
        (1, 2, 3),
        (None, message(), 0.0),
        ("peer", bytearray(message()), 0.0),
        ("peer", message(), None),
        ("peer", message(), 0.0, 1),
    ],
)
def test_a_call_with_something_else_is_a_type_error(args: tuple[object, ...]) -> None:
    peer = Peer("p", 1, 0.0)
    given = tuple(peer if one == "peer" else one for one in args)

    with pytest.raises(TypeError):
        fold_of(Replica("w")).fold(*given)  # type: ignore[arg-type]


def test_a_peer_of_another_type_is_refused() -> None:
    other = cast("Peer", SimpleNamespace(name="p", epoch=1, next_seq=1))

    with pytest.raises(TypeError, match=r"peer is .*, it must be kvmesh\._native\.Peer"):
        fold_of(Replica("w")).fold(other, message(), 0.0)


def test_a_fold_is_made_of_compiled_parts_alone() -> None:
    with pytest.raises(TypeError):
        MessageFold()  # type: ignore[call-arg]
    replica = Replica("w")
    replica.scheduler.overlaps.hints = 7  # type: ignore[assignment]
    with pytest.raises(TypeError, match="graded Approx"):
        new_message_fold(replica.scheduler, replica.events())


class Failing:
    """Raises whatever it is asked."""

    def __init__(self) -> None:
        self.strangers: dict[str, float] = {}

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize(
    ("reported", "asked"),
    [
        ((named(0, "w"),), "fold_record"),
        ((failed(1, 3),), "fold_record"),
        ((placed(7, 0, AMOUNTS), bare(1, 7)), "note_answers"),
        ((placed(7, 0, AMOUNTS), bare(3, 7), named(1, "v")), "note_answers"),
        ((bare(1, 5), bare(3, 5), placed(7, 9, AMOUNTS)), "fold_record"),
    ],
)
def test_an_error_of_what_it_asks_ends_the_call(reported: tuple[bytes, ...], asked: str) -> None:
    replica = Replica("w")
    fold = new_message_fold(replica.scheduler, Failing())  # type: ignore[arg-type]
    peer = Peer("p", 1, 0.0)
    peer.workers[as_name_key(0)] = "w"

    with pytest.raises(RuntimeError, match=asked):
        fold.fold(peer, message(*reported), 0.0)

    assert peer.next_seq == 1


def test_shares_that_cannot_be_read_refuse_the_message() -> None:
    replica = Replica("w")
    fold, peer = fold_of(replica), Peer("p", 1, 0.0)

    with pytest.raises(CodecError, match="shares of 1 bytes"):
        fold.fold(peer, message(named(0, "w"), tail=b"\xc1"), 0.0)

    assert (peer.workers, peer.next_seq) == ({}, 1)


def test_what_a_peer_says_of_itself_is_not_trusted() -> None:
    replica = Replica("w")
    fold, peer = fold_of(replica), Peer("p", 1, 0.0)
    peer.workers.update({as_name_key(0): 7, as_name_key(1): "w"})  # type: ignore[dict-item]
    peer.unconfirmed = 7  # type: ignore[assignment]

    with pytest.raises((AttributeError, TypeError)):
        fold.fold(peer, message(placed(1, 1, AMOUNTS), placed(2, 0, AMOUNTS)), 0.0)

    assert replica.ids("p") == ["p#1"]


def test_a_bookings_number_is_forgotten_with_its_end() -> None:
    replica = Replica("w")
    fold, peer = fold_of(replica), Peer("p", 1, 0.0)
    peer.workers[as_name_key(0)] = "w"
    first = 1
    for number in range(0, 3000, 3):
        reported = [
            *(placed(n, 0, AMOUNTS, [1, 2, 3]) for n in (number, number + 1, number + 2)),
            bare(1, number),
            bare(3, number),
            failed(number + 1, 3, "cut"),
        ]
        assert fold.fold(peer, message(*reported, first_seq=first), 0.0)
        first += len(reported)
        replica.sequences.finish(f"p#{number + 2}")

    assert replica.ids("p") == []
    gc.collect()
    assert type(replica.sequences.bookings) is dict
    assert sum(type(one).__name__ == "Booking" for one in gc.get_referents(peer)) == 0


def test_folding_keeps_no_reference() -> None:
    replica = Replica("w")
    fold, peer = fold_of(replica), Peer("p", 1, 0.0)
    peer.workers[as_name_key(0)] = name = "w-with-a-name-of-its-own"
    replica.membership.add(name, 0.0)
    worker = peer.workers[as_name_key(0)]

    def turn(first: int) -> None:
        reported = (placed(1, 0, AMOUNTS, [1, 2]), bare(1, 1), bare(3, 1))
        assert fold.fold(peer, message(*reported, first_seq=first), 0.0)

    turn(1)
    before = sys.getrefcount(worker), sys.getrefcount(peer), sys.getrefcount(replica.sequences)
    for number in range(1, 200):
        turn(1 + 3 * number)

    after = sys.getrefcount(worker), sys.getrefcount(peer), sys.getrefcount(replica.sequences)
    assert after == before
