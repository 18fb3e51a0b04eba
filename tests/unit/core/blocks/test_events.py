import msgspec
import pytest

from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    decode_batch,
    encode_batch,
)
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import FormatRange

HASHES = bytes(range(16))


def test_a_batch_is_read_as_it_was_written() -> None:
    events: list[Event] = [Cleared(), Stored(ROOT, HASHES), Removed(HASHES, tier=1), Reuse(3, 1)]
    batch = Batch(VERSION, 7, 3, events)

    assert decode_batch(encode_batch(batch)) == batch


def test_the_wire_is_a_plain_array_with_packed_hashes() -> None:
    data = encode_batch(Batch(VERSION, 7, 3, [Stored(ROOT, HASHES)]))

    assert msgspec.msgpack.decode(data) == [VERSION, 7, 3, [[0, ROOT, HASHES, 0]]]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'{"stream":"KVMESH_EVENTS_code","seq":7}', "bytes"),
        (b"", "0 bytes"),
        (msgspec.msgpack.encode([VERSION + 1, 7, 3, []]), f"format {VERSION + 1}"),
        (msgspec.msgpack.encode([VERSION, -1, 3, []]), r">= 0 - at `\$\[1\]"),
        (msgspec.msgpack.encode([VERSION, 7, -3, []]), r">= 0 - at `\$\[2\]"),
        (msgspec.msgpack.encode([VERSION, 7, 3, [[0, 0, b"123", 0]]]), "3 hash bytes"),
        (msgspec.msgpack.encode([VERSION, 7, 3, [[1, HASHES, -1]]]), r">= 0 - at `\$\[3\]"),
        (msgspec.msgpack.encode([VERSION, 7, 3, [[9]]]), "bytes"),
    ],
)
def test_anything_else_is_refused_and_named(data: bytes, named: str) -> None:
    with pytest.raises(CodecError, match=named):
        decode_batch(data)


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (msgspec.msgpack.encode([VERSION + 1, 7, 3, []]), VERSION + 1),
        (msgspec.msgpack.encode([500, {"another": "shape"}]), 500),
        (bytes([VERSION + 1]) + b"records of a fixed size", VERSION + 1),
        (b"\x1f", 31),
    ],
)
def test_a_newer_format_of_whatever_shape_is_told_from_garbage(data: bytes, number: int) -> None:
    with pytest.raises(NewerError, match=f"format {number}, this build reads 1") as caught:
        decode_batch(data)

    assert caught.value.number == number


@pytest.mark.parametrize(
    "data",
    [
        b"\x20",
        b'{"stream":"KVMESH_EVENTS_code"}',
        b"\x01",
        msgspec.msgpack.encode([0, 7, 3, []]),
        msgspec.msgpack.encode([-1, 7, 3, []]),
        msgspec.msgpack.encode([2**16, 7, 3, []]),
        msgspec.msgpack.encode(["2", 7, 3, []]),
        b"\x94\x01",
        b"\x91" * 5000,
    ],
)
def test_what_tells_no_newer_format_is_garbage(data: bytes) -> None:
    with pytest.raises(CodecError) as caught:
        decode_batch(data)

    assert not isinstance(caught.value, NewerError)


def test_each_format_that_is_read_is_decoded() -> None:
    batch = Batch(2, 7, 3, [Cleared()])

    assert decode_batch(encode_batch(batch), FormatRange(1, 2)) == batch
    with pytest.raises(CodecError, match="format 1, this build reads 2 to 3"):
        decode_batch(encode_batch(Batch(1, 7, 3, [])), FormatRange(2, 3))


@pytest.mark.parametrize("rule", [[3, 65, 0], [3, -1, 0], [3, 0, 9], [3, 10**25, 0], [3, "1"]])
def test_a_rule_out_of_range_is_refused(rule: list[object]) -> None:
    with pytest.raises(CodecError):
        decode_batch(msgspec.msgpack.encode([VERSION, 7, 3, [[*map(_fitting, rule)]]]))


def _fitting(number: object) -> object:
    return float(number) if isinstance(number, int) and number >= 2**64 else number
