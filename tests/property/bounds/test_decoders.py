"""What engines, siblings and files send as messages: ten times the input, ten times the work.

Each decoder takes or refuses; nothing that is refused costs more than what is taken.
"""

import contextlib
from collections.abc import Callable
from typing import Final

import pytest
from xxhash import xxh3_64

from kvmesh._native import scan_json, scan_tokens
from kvmesh.app.members.engine_load import parse_gauges
from kvmesh.core.blocks.events import ROOT, VERSION, Batch, Stored, decode_batch, encode_batch
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.model_card import read_cards
from kvmesh.core.engines.sglang.load import decode_load_stat, decode_loads
from kvmesh.core.index.snapshot_manifest import decode_manifest
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import MAGIC
from kvmesh.core.prompts.json_size import BETWEEN
from kvmesh.core.routing.peer_records import read_records
from kvmesh.errors import KvMeshError
from kvmesh.transport.grpc.extproc_messages import decode
from tests.property.bounds.work import assert_linear
from tests.reference.prompts.body_scan import compiled_scan

_BATCH: Final = b"\x92\xcb\0\0\0\0\0\0\0\0"


def _stored(hashes: bytes, tokens: bytes) -> bytes:
    return _BATCH + b"\x91\x95\xabBlockStored" + hashes + b"\xc0" + tokens + b"\x04"


def _array(count: int, item: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def _journal(size: int) -> bytes:
    return encode_batch(Batch(VERSION, 1, 1, [Stored(ROOT, pack_hashes(range(1, size // 8)))]))


def _snapshot(size: int) -> bytes:
    content = MAGIC + b"\1\0\0\0\1" * (size // 5)
    return content + xxh3_64(content).intdigest().to_bytes(8, "little")


def _take(data: bytes) -> None:
    EngineCache(4).take(data)


Decode = Callable[[bytes], object]
EVENTS: Final[dict[str, Callable[[int], bytes]]] = {
    "nested arrays": lambda size: b"\x91" * size,
    "nested maps": lambda size: b"\x81\xa1a" * (size // 3),
    "nested keys": lambda size: _stored(b"\x91\1", b"\x91" * size),
    "many events": lambda size: _BATCH + _array(size // 18, b"\x91\xb0AllBlocksCleared"),
    "many hashes": lambda size: _stored(_array(size, b"\1"), b"\x90"),
    "many tokens": lambda size: _stored(b"\x91\1", _array(size // 3, b"\xcd\1\2")),
    "a count of 2^32": lambda size: _stored(b"\xdd\xff\xff\xff\xff" + b"\1" * size, b"\x90"),
    "a long name": lambda size: _BATCH + b"\x91\x91\xdb" + size.to_bytes(4, "big") + b"x" * size,
}
BODIES: Final[dict[str, Callable[[int], bytes]]] = {
    "nested lists": lambda size: b'{"messages":' + b"[" * size,
    "nested objects": lambda size: b'{"a":' * (size // 5),
    "a long number": lambda size: b'{"max_tokens":1' + b"0" * size + b"}",
    "many keys": lambda size: b"{" + b'"model":"a",' * (size // 12) + b'"a":1}',
    "backslashes": lambda size: b'{"prompt":"' + b"\\\\" * (size // 2) + b'"}',
    "escapes": lambda size: b'{"prompt":"' + b"\\ud83d\\ude00" * (size // 12) + b'"}',
    "half a pair": lambda size: b'{"prompt":"' + b"\\ud83d" * (size // 6) + b'"}',
    "many messages": lambda size: (
        b'{"messages":[' + b'{"role":"user","content":"a"},' * (size // 30) + b"{}]}"
    ),
    "blanks": lambda size: b"{" + b" " * size + b"}",
}
PAGES: Final[dict[str, Callable[[int], bytes]]] = {
    "one line": lambda size: b"vllm:num_requests_running{" + b"a" * size,
    "labels": lambda size: b"vllm:num_requests_running{" + b'a="b",' * (size // 6) + b"} 1\n",
    "series": lambda size: b'vllm:num_requests_running{engine="1"} 1\n' * (size // 41),
    "braces": lambda size: b"{" * size,
    "quotes": lambda size: b'vllm:num_requests_running{a="' + b'\\"' * (size // 2),
    "blanks": lambda size: b"vllm:num_requests_running" + b" " * size,
}
JSON: Final[dict[str, Callable[[int], bytes]]] = {
    "nested lists": lambda size: b"[" * size,
    "cards": lambda size: b'{"data":[' + b'{"id":"a"},' * (size // 11) + b'{"id":"b"}]}',
    "loads": lambda size: b'{"loads":[' + b'{"dp_rank":1},' * (size // 14) + b'{"dp_rank":2}]}',
    "a long number": lambda size: b'{"loads":[{"dp_rank":1' + b"0" * size + b"}]}",
}
RECORDS: Final[dict[str, Callable[[int], bytes]]] = {
    "zeros": bytes,
    "ones": lambda size: b"\1" * size,
    "all bits": lambda size: b"\xff" * size,
    "nested arrays": lambda size: b"\x91" * size,
    "a journal message": _journal,
    "a snapshot": _snapshot,
}
GATEWAYS: Final[dict[str, Callable[[int], bytes]]] = {
    "headers": lambda size: (
        b"\x12"
        + _varint(size // 6 * 6 + 6)
        + b"\x0a"
        + _varint(size // 6 * 6)
        + b"\x0a\4\x0a\1a\x10" * (size // 6)
    ),
    "groups": lambda size: b"\x0b" * size,
    "unknown fields": lambda size: b"\xf8\x01\x01" * (size // 3),
}


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def _pages(page: bytes) -> object:
    return parse_gauges(page.decode())


TABLE: Final[list[tuple[str, Decode, dict[str, Callable[[int], bytes]]]]] = [
    ("KV events", _take, EVENTS),
    ("KV events, by the decoder of all dialects", decode_engine_batch, EVENTS),
    ("a body, compiled", compiled_scan, BODIES),
    ("a body's token ids", scan_tokens, BODIES),
    ("a body's size", lambda data: scan_json(data, BETWEEN, 0), BODIES),
    ("a metrics page", _pages, PAGES),
    ("model cards", read_cards, JSON),
    ("loads", decode_loads, JSON),
    ("a load stat", decode_load_stat, RECORDS),
    ("a journal message", decode_batch, RECORDS),
    ("booking records", lambda data: read_records("p", data), RECORDS),
    ("a manifest", decode_manifest, RECORDS),
    ("a snapshot", decode_snapshot, RECORDS),
    ("a gateway's message", decode, GATEWAYS),
]


@pytest.mark.parametrize(
    ("decoder", "make"),
    [
        pytest.param(decoder, make, id=f"{name}: {kind}")
        for name, decoder, kinds in TABLE
        for kind, make in kinds.items()
    ],
)
def test_ten_times_the_input_is_ten_times_the_work(
    decoder: Decode, make: Callable[[int], bytes]
) -> None:
    def prepared(size: int) -> Callable[[], object]:
        data = make(size)

        def work() -> None:
            with contextlib.suppress(KvMeshError, ValueError):
                decoder(data)

        return work

    assert_linear(prepared, 20_000)
