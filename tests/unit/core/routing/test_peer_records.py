"""The bytes of booking records, and each way in which they may be wrong."""

import pytest

from kvmesh._native import Peer
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.members.outcomes import SERVED, Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.peer_bookings import new_message_fold
from kvmesh.core.routing.peer_records import (
    MOST_GRADED,
    Named,
    PlacedRecord,
    RecordBatch,
    most_graded,
    read_records,
)
from kvmesh.errors import CodecError
from kvmesh.formats import FormatRange
from tests.property.support.records import (
    bare,
    failed,
    grew,
    message,
    named,
    placed,
)
from tests.property.support.replica import Replica

HEAD = "0100 0000 02000000 0700000000000000 0900000000000000"


def test_a_message_is_these_bytes() -> None:
    data = bytes.fromhex(
        HEAD + "00 07 0100 05000000 02000000 04000000 46000000 1e000000 03000000 00000000"
        "0100000000000080"
        "01 000000 05000000"
    )

    batch = read_records("p", data)

    expected = PlacedRecord(
        "p#5", 2, 4, 70, 30, 3, pack_hashes([2**63 + 1]), streams=True, believed=True, turn=True
    )
    assert batch == RecordBatch(7, 9, [expected, Prefilled("p#5")])
    assert data == message(
        placed(5, 2, (4, 70, 30, 3), [2**63 + 1], flags=7), bare(1, 5), epoch=7, first_seq=9
    )


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("02000000 05000000 0000000000010000", Grew("p#5", MOST_TOKENS)),
        ("03000000 ffffffff", Ended("p#4294967295")),
        ("04000000 00000000", StateBegins()),
        ("05000000 00000000", StateEnds()),
        (
            "06030500 05000000 000000000000e03f 0000000000000040 72657365 74000000",
            Ended("p#5", int(Verdict.WORKER), "reset", 0.5, 2.0),
        ),
        (
            "06000000 05000000 000000000000f07f 000000000000f87f",
            Ended("p#5", int(Verdict.UNKNOWN), "", float("inf"), float("nan")),
        ),
        ("07000400 02000000 c3a42d3100000000", Named(2, "ä-1")),
        ("07000800 02000000 776f726b65722d31", Named(2, "worker-1")),
    ],
)
def test_each_record_is_these_bytes(text: str, event: object) -> None:
    data = bytes.fromhex("01000000 01000000 0100000000000000 0100000000000000" + text)

    (read,) = read_records("p", data).events

    assert repr(read) == repr(event)
    assert folds(data)


def test_a_few_states_may_begin_in_one_message() -> None:
    data = message(*[bare(4, 0)] * 4)

    assert read_records("p", data).events == [StateBegins()] * 4
    assert folds(data)


def test_shares_follow_the_records() -> None:
    shares = Shares(1, 2, [], True)

    batch = read_records("p", message(bare(1, 5), shares=shares))

    assert (batch.events, batch.shares) == ([Prefilled("p#5")], shares)


def test_served_and_unknown_verdicts_are_bounded() -> None:
    served, unknown = read_records("p", message(failed(1, 1), failed(2, 250, "x" * 40))).events

    assert isinstance(served, Ended)
    assert isinstance(unknown, Ended)
    assert served.attempt() is SERVED
    assert (unknown.attempt().verdict, len(unknown.attempt().kind)) == (Verdict.UNKNOWN, 32)


@pytest.mark.parametrize("blocks", [0, 3, 4, 5, 32, 6250, 10**6, 2**32 - 1])
def test_a_prompt_has_no_more_graded_hashes_than_grading_makes(blocks: int) -> None:
    most = most_graded(blocks)
    if blocks <= 6250:
        assert most == len(grade(range(blocks), blocks))

    assert most <= MOST_GRADED
    assert folds(message(placed(1, 0, (blocks, 1, 1, 0), list(range(most)))))
    with pytest.raises(CodecError, match=rf"{most + 1} hashes .* {most} at most"):
        read_records("p", message(placed(1, 0, (blocks, 1, 1, 0), list(range(most + 1)))))
    assert not folds(message(placed(1, 0, (blocks, 1, 1, 0), list(range(most + 1)))))


def cut(data: bytes, to: int) -> bytes:
    return data[:to]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes, a head has 24"),
        (cut(message(), 23), "23 bytes, a head has 24"),
        (b"\x00" + message()[1:], "format 0, this build reads 1"),
        (b"\x02" + message()[1:], "format 2, this build reads 1"),
        (message()[:1] + b"\x02" + message()[2:], "flags 0x2 and 0x0"),
        (message()[:3] + b"\x01" + message()[4:], "flags 0x0 and 0x100"),
        (message(epoch=2**62 + 1), "epoch 4611686018427387905 .*beyond 2\\^62"),
        (message(first_seq=2**64 - 1), "from 18446744073709551615 on: beyond 2\\^62"),
        (message(events=1), "end at byte 24, before record 0 of 1"),
        (message(bare(1, 5), events=2**32 - 1), "end at byte 32, before record 1 of 4294967295"),
        (cut(message(bare(1, 5)), 31), "end at byte 24, before record 0 of 1"),
        (message(bare(1, 5), events=0), "8 bytes behind their 0 records"),
        (message(bare(1, 5)) + b"\x00", "1 bytes behind their 1 records"),
        (message(bare(8, 5)), "at byte 24 has unknown kind 8: update"),
        (message(bare(1, 5), bare(255, 5)), "at byte 32 has unknown kind 255"),
        (message(b"\x01\x01" + bytes(6)), "at byte 24, kind 1, has reserved bits"),
        (message(b"\x03\x00\x00\x01" + bytes(4)), "kind 3, has reserved bits"),
        (message(bare(4, 1)), "kind 4, has reserved bits"),
        (message(bare(5, 1)), "kind 5, has reserved bits"),
        (message(b"\x02\x01" + bytes(14)), "kind 2, has reserved bits"),
        (cut(message(grew(5, 7)), 39), "kind 2, has 16 bytes, 15 are left"),
        (message(grew(5, MOST_TOKENS + 1)), "grew to 1099511627777 tokens, more than 2\\^40"),
        (message(grew(5, 2**64 - 1)), "grew to 18446744073709551615 tokens"),
        (message(placed(1, 0, (9, 1, 1, 0), flags=8)), "kind 0, has reserved bits"),
        (message(placed(1, 0, (9, 1, 1, 0))[:-1] + b"\x01"), "kind 0, has reserved bits"),
        (cut(message(placed(1, 0, (9, 1, 1, 0))), 55), "kind 0, has 32 bytes, 31 are left"),
        (cut(message(placed(1, 0, (9, 1, 1, 0), [1, 2])), 71), "has 48 bytes, 47 are left"),
        (message(placed(1, 0, (0, 1, 1, 0), [1])), "has 1 hashes of a prompt of 0 blocks"),
        (cut(message(failed(1, 3)), 47), "kind 6, has 24 bytes, 23 are left"),
        (cut(message(failed(1, 3, "cut")), 55), "kind 6, has 32 bytes, 31 are left"),
        (message(failed(1, 3)[:3] + b"\x01" + failed(1, 3)[4:]), "kind 6, has reserved bits"),
        (message(failed(1, 3, "cut")[:-1] + b"\x01"), "kind 6, has reserved bits"),
        (message(failed(1, 3, b"\xff\xfe")), "kind 6: 'utf-8' codec"),
        (message(named(1, "")), "by 0 characters, a name has 1 to 512"),
        (message(named(1, "w" * 513)), "by 513 characters, a name has 1 to 512"),
        (message(b"\x07\x01" + named(1, "w")[2:]), "kind 7, has reserved bits"),
        (message(named(1, b"\xc3")), "kind 7: 'utf-8' codec"),
        (cut(message(named(1, "worker-17")), 47), "kind 7, has 24 bytes, 23 are left"),
        (message(*[bare(4, 0)] * 5), "begin 5 states in one message, at most 4"),
        (message(bare(1, 5), tail=b"\xc1"), "shares of 1 bytes behind bookings"),
        (message(tail=b""), "shares of 0 bytes behind bookings"),
    ],
)
def test_a_message_that_is_not_as_it_must_be_is_refused_whole(data: bytes, why: str) -> None:
    replica = Replica()
    replica.peers.receive("p", message(named(0, "w"), placed(5, 0, (9, 40, 30, 2))), 0.0)
    before = replica.view()

    with pytest.raises(CodecError, match=why):
        read_records("p", data)
    if data[:1] == b"\x01":
        with pytest.raises(CodecError, match=why):
            replica.peers.receive("p", data, 1.0)

    assert replica.view() == before


def test_a_build_reads_the_formats_that_it_is_told() -> None:
    later = b"\x02" + message(bare(1, 5))[1:]

    assert read_records("p", later, FormatRange(1, 2)).events == [Prefilled("p#5")]
    with pytest.raises(CodecError, match="format 1, this build reads 2 to 3"):
        read_records("p", message(), FormatRange(2, 3))


def folds(data: bytes) -> bool:
    """Return whether the compiled core takes a message."""
    replica = Replica()
    fold = new_message_fold(replica.scheduler, replica.events())
    peer = Peer("p", int.from_bytes(data[8:16], "little"), 0.0)
    return fold.fold(peer, data, 0.0) is not None
