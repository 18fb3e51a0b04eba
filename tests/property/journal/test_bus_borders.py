"""Whatever comes over the bus, out of the journal or a store is in range, or a `CodecError`."""

from collections.abc import Callable
from functools import partial
from math import inf, isfinite, nan
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import Reread
from kvmesh.actors.messages import (
    Drain,
    Dump,
    Reload,
    Resync,
    RouterHeartbeat,
    StateWanted,
    WorkerHeartbeat,
    WorkerLoad,
    WriteFormat,
)
from kvmesh.actors.wire import decode, encode
from kvmesh.bounds import MAX_COUNT, MAX_MEMBERS, MAX_NAMES, MAX_ORDINAL, MAX_TEXT
from kvmesh.core.blocks.events import (
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    decode_batch,
    encode_batch,
)
from kvmesh.core.index.snapshot_manifest import decode_manifest, encode_manifest
from kvmesh.core.journal.ordering import Cursor, Ordering
from kvmesh.core.members.outcomes import Attempt
from kvmesh.core.routing.booking_events import MOST_SECONDS, Ended
from kvmesh.core.routing.peer_records import read_records
from kvmesh.errors import CodecError
from kvmesh.formats import KINDS as FORMAT_KINDS

U64: Final = 2**64 - 1
EDGES: Final[tuple[object, ...]] = (
    *(0, 1, 2, 16, -1, 2**31, 2**53, MAX_ORDINAL - 1, MAX_ORDINAL, MAX_ORDINAL + 1),
    *(2**63 - 1, 2**63, U64, -(2**63), "", "w", "n" * 300, "x" * (MAX_TEXT + 1), None, True),
    *(nan, inf, -inf, -1.0, 0.0, 1e308, b"", b"\xff" * 8, [], {}, [[]], ["m"] * (MAX_NAMES + 1)),
)
KINDS: Final[tuple[type[Message], ...]] = (
    *(WorkerHeartbeat, RouterHeartbeat, Resync, Reload, StateWanted, Dump, Drain, Reread),
    WriteFormat,
)
SANE: Final = {
    WorkerHeartbeat: WorkerHeartbeat("w", "b", 1, 0, "http://w", ("m",), 16),  # type: ignore[arg-type]
    RouterHeartbeat: RouterHeartbeat("r", "b", "http://r", ready=True, epoch=1),
    Resync: Resync("w", 1, 0),  # type: ignore[arg-type]
    Reload: Reload("why"),
    StateWanted: StateWanted("r"),
    Dump: Dump("why"),
    Drain: Drain(),
    Reread: Reread("w"),  # type: ignore[arg-type]
    WriteFormat: WriteFormat("w", 1, "r"),  # type: ignore[arg-type]
}
anything = st.recursive(
    st.sampled_from(EDGES) | st.integers(-(2**63), U64) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def in_range(value: object) -> bool:
    """Return whether every number in a decoded struct is one that sums and codecs can take."""
    match value:
        case bool() | str() | bytes() | None:
            return True
        case int():
            return -MAX_ORDINAL <= value <= U64
        case float():
            return isfinite(value)
        case dict():
            return all(map(in_range, value.values()))
        case list() | tuple():
            return all(map(in_range, value))
        case _:
            return in_range(msgspec.to_builtins(value))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_message_decodes_into_range_or_not_at_all(
    kind: type[Message], data: st.DataObject
) -> None:
    sane = msgspec.to_builtins(SANE[kind])
    fields = sorted({*sane, *kind.__struct_fields__})
    for name in data.draw(st.sets(st.sampled_from(fields), min_size=1, max_size=3)):
        sane[name] = data.draw(anything, label=name)
    if "load" in sane and data.draw(st.booleans()):
        load = st.dictionaries(st.sampled_from(WorkerLoad.__struct_fields__), anything)
        sane["load"] = data.draw(load)
    if "formats" in sane and data.draw(st.booleans()):
        sane["formats"] = data.draw(st.dictionaries(st.sampled_from(FORMAT_KINDS), anything))

    try:
        found = decode(msgspec.msgpack.encode(sane), kind)
    except CodecError:
        return

    if isinstance(found, WorkerHeartbeat):
        report = msgspec.to_builtins(found.load.report())
        adapters = report.pop("adapters")
        assert 0 <= adapters["slots"] <= MAX_COUNT
        assert all(value is None or 0 <= value <= MAX_COUNT for value in report.values())
        found = msgspec.structs.replace(found, load=WorkerLoad())
    assert in_range(found)
    assert decode(encode(found), kind) == found


DECODERS: Final[tuple[Callable[[bytes], object], ...]] = (
    decode_batch,
    partial(read_records, "p"),
    decode_manifest,
    *(partial(lambda kind, data: decode(data, kind), kind) for kind in KINDS),
)


@pytest.mark.parametrize("decoder", DECODERS)
@given(data=st.binary(max_size=64) | anything.map(msgspec.msgpack.encode))
def test_any_bytes_decode_or_are_refused(decoder: Callable[[bytes], object], data: bytes) -> None:
    try:
        decoder(data)
    except CodecError:
        return


@pytest.mark.parametrize("deep", [b"\x91" * 100_000, b"\x81\xa1a" * 50_000, b"[" * 100_000])
@pytest.mark.parametrize("decoder", DECODERS)
def test_what_nests_without_end_is_refused(decoder: Callable[[bytes], object], deep: bytes) -> None:
    with pytest.raises(CodecError):
        decoder(deep)


ordinals = st.sampled_from([0, 1, 2, MAX_ORDINAL - 1, MAX_ORDINAL]) | st.integers(0, MAX_ORDINAL)


@given(ordinals, ordinals, st.lists(st.sampled_from(["clear", "store", "remove"]), max_size=4))
def test_batches_at_the_bounds_leave_cursors_that_are_stored_and_read(
    epoch: int, first_seq: int, kinds: list[str]
) -> None:
    """From what decodes follow numbers that encode: a cursor is an epoch and a sequence, too."""
    hashes = b"\xff" * 8
    made: dict[str, Event] = {
        "clear": Cleared(),
        "store": Stored(U64, hashes, 255),
        "remove": Removed(hashes),
    }
    data = encode_batch(Batch(VERSION, epoch, first_seq, [made[kind] for kind in kinds]))
    try:
        batch = decode_batch(data)
    except CodecError:
        assert first_seq + len(kinds) > MAX_ORDINAL
        return
    ordering = Ordering()
    ordering.admit("w", batch)  # type: ignore[arg-type]

    for cursor in ordering.cursors().values():
        assert isinstance(cursor, Cursor)
        assert 0 <= cursor.next_seq <= MAX_ORDINAL
        assert 0 <= cursor.epoch <= MAX_ORDINAL


@pytest.mark.parametrize(("epoch", "first_seq"), [(1, U64), (1, MAX_ORDINAL), (U64, 1)])
def test_a_record_beyond_the_last_number_is_refused_with_its_place(
    epoch: int, first_seq: int
) -> None:
    with pytest.raises(CodecError, match=r"journal message"):
        decode_batch(msgspec.msgpack.encode([VERSION, epoch, first_seq, [[2]]]))


@pytest.mark.parametrize("kind", [WorkerHeartbeat, RouterHeartbeat])
def test_lists_and_names_beyond_their_bounds_are_refused(kind: type[Message]) -> None:
    sane = msgspec.to_builtins(SANE[kind])
    for change in (
        {"models": ["m"] * (MAX_MEMBERS + 1)},
        {"models": ["m" * 1_000_000]},
        {"url": "http://" + "a" * 1_000_000},
        {"worker": "", "router": ""},
        {"worker": "w" * 1000, "router": "r" * 1000},
    ):
        with pytest.raises(CodecError):
            decode(msgspec.msgpack.encode({**sane, **change}), kind)


@given(st.floats(), st.floats(), st.integers(-(2**63), 2**63), st.text(max_size=100))
def test_what_an_attempt_is_said_to_have_lost_is_bounded(
    lost_s: float, retry_after_s: float, verdict: int, kind: str
) -> None:
    attempt = Ended("q", verdict, kind, lost_s, retry_after_s).attempt()

    assert isinstance(attempt, Attempt)
    assert 0.0 <= attempt.lost_s <= MOST_SECONDS
    assert 0.0 <= attempt.retry_after_s <= MOST_SECONDS


def test_a_manifest_out_of_range_is_refused() -> None:
    one = {"name": "o", "created": "c", "sequence": 1, "size": 1, "sha256": "", "fence": 1}
    good = {"generations": [one], "schema": 1}

    found = decode_manifest(msgspec.json.encode(good))
    assert decode_manifest(encode_manifest(found)) == found
    for change in ({"sequence": U64}, {"fence": -1}, {"size": 10**25}, {"name": "n" * 10_000}):
        bad = {"generations": [{**one, **change}], "schema": 1}
        with pytest.raises(CodecError):
            decode_manifest(msgspec.json.encode(bad))
