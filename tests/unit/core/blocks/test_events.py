import msgspec
import pytest

from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Removed,
    Stored,
    decode_batch,
    encode_batch,
)
from kvmesh.errors import CodecError

HASHES = bytes(range(16))


def test_a_batch_is_read_as_it_was_written() -> None:
    batch = Batch(VERSION, 7, 3, [Cleared(), Stored(ROOT, HASHES), Removed(HASHES, tier=1)])

    assert decode_batch(encode_batch(batch)) == batch


def test_the_wire_is_a_plain_array_with_packed_hashes() -> None:
    data = encode_batch(Batch(VERSION, 7, 3, [Stored(ROOT, HASHES)]))

    assert msgspec.msgpack.decode(data) == [VERSION, 7, 3, [[0, ROOT, HASHES, 0]]]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b'{"stream":"KVMESH_EVENTS_code","seq":7}', "bytes"),
        (b"", "0 bytes"),
        (msgspec.msgpack.encode([VERSION + 1, 7, 3, []]), f"version {VERSION + 1}"),
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
