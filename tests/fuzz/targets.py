"""What is fuzzed: bytes from engines, the journal and HTTP, up to the state they change.

A target returns when bytes are taken, or refused as they should be; anything it raises is a bug.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvmesh.actors.engine_messages import EnginePayload
from kvmesh.actors.kernel import Append
from kvmesh.actors.messages import Appended, Tick
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions
from kvmesh.bounds import DEFAULT_MAX_BLOCKS
from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Event,
    Removed,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.sglang.load import decode_load_stat, decode_loads
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.errors import CodecError
from tests.fuzz import (
    extproc_targets,
    gateway_targets,
    grpc_targets,
    harsh_targets,
    http_targets,
    mesh_targets,
    outside_targets,
    scan_targets,
)
from tests.fuzz.stories.engine_batches import build_batches, odd_batches
from tests.fuzz.stories.journal_stories import build_messages
from tests.reference.engines.cache import NaiveEngineCache

FIXTURES = Path(__file__).parents[1] / "fixtures" / "engines"
STRUCTURED = 0x80
"""With this bit in the first byte, the rest chooses among well-formed events."""

W = WorkerId("w")


def engine(data: bytes) -> None:
    """Take engine batches through the journal to an index: it holds what a dump would bring."""
    publisher = Publisher(PublisherOptions(W, "b", 1, "http://w", block_size=4))
    replica = IndexReplica(KvIndex())
    replica.open("today", 0.0)
    structured = bool(data) and data[0] >= STRUCTURED
    payloads = build_batches(data[1:]) if structured else [data[1:]]
    sequence = 0
    for payload in payloads:
        waiting = [*publisher.receive(EnginePayload(payload), 0.0)]
        waiting += publisher.receive(Tick("flush"), 0.0)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Append):
                sequence += 1
                replica.fold(sequence, W, effect.data, 0.0)
                waiting += publisher.receive(Appended(effect.token, sequence), 0.0)
    anew = KvIndex()
    for event in publisher.dump():
        assert not anew.apply(W, event), event
    assert replica.index.blocks(W) == anew.blocks(W), publisher.statistics()


def engine_cache(data: bytes) -> None:
    """Follow engine batches compiled and naively: both say the same, whatever comes."""
    structured = bool(data) and data[0] >= STRUCTURED
    payloads = build_batches(data[1:]) if structured else [data[1:]]
    naive, compiled = NaiveEngineCache(4, max_hidden=2), EngineCache(4, max_hidden=2)
    for payload in payloads:
        answers: list[object] = []
        for cache in (naive, compiled):
            try:
                answers.append(cache.take(payload))
            except CodecError as error:
                answers.append((str(error), cache.lose()))
        assert answers[0] == answers[1]
    assert naive.dump() == compiled.dump()


def journal(data: bytes) -> None:
    """Fold journal records: garbage leaves the index as it was, and one call does as many do."""
    structured = bool(data) and data[0] >= STRUCTURED
    most = 4 + data[0] % STRUCTURED if structured else DEFAULT_MAX_BLOCKS
    records = build_messages(data[1:]) if structured else _split(data)
    replica, single = (IndexReplica(KvIndex(most)) for _ in range(2))
    single.index.fold = lambda *_: None  # type: ignore[method-assign]
    for one in (replica, single):
        one.open("today", 0.0)
    for sequence, record in enumerate(records, 1):
        folded = [one.fold(sequence, W, record, 0.0) for one in (replica, single)]
        assert folded[0] == folded[1]
        with contextlib.suppress(CodecError):
            decode_batch(record)
    assert replica.claim() == single.claim()
    assert replica.index.statistics() == single.index.statistics()


def load(data: bytes) -> None:
    """Read load reports of both kinds."""
    with contextlib.suppress(CodecError):
        decode_load_stat(data)
    with contextlib.suppress(CodecError):
        decode_loads(data)


ROOMS = (
    extproc_targets,
    gateway_targets,
    grpc_targets,
    harsh_targets,
    http_targets,
    mesh_targets,
    outside_targets,
    scan_targets,
)
TARGETS: dict[str, Callable[[bytes], None]] = {
    "engine": engine,
    "engine_cache": engine_cache,
    "journal": journal,
    "load": load,
    **{name: target for room in ROOMS for name, target in room.TARGETS.items()},
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield inputs to begin with: every published schema, live captures, what is well formed."""
    for room in ROOMS:
        if target in room.TARGETS:
            found: Iterator[bytes] = room.seeds(target)
            return found
    return {
        "engine": _engine_seeds,
        "engine_cache": _engine_seeds,
        "journal": _journal_seeds,
        "load": _load_seeds,
    }[target]()


def _engine_seeds() -> Iterator[bytes]:
    schemas = json.loads((FIXTURES / "wire_fixtures.json").read_text())
    for schema in schemas.values():
        for name, payload in schema.items():
            if name != "versions":
                yield b"\0" + bytes.fromhex(payload)
    for path in sorted(FIXTURES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield b"\0" + bytes.fromhex(json.loads(line)["hex"])
    for batch in odd_batches():
        yield b"\0" + batch
    yield bytes([STRUCTURED]) + bytes(range(256))


def _journal_seeds() -> Iterator[bytes]:
    for hashes in ([1, 2, 3], [4], []):
        record = encode_batch(Batch(VERSION, 1, 1, [Stored(ROOT, pack_hashes(hashes))]))
        yield len(record).to_bytes(2, "big") + record
    first = encode_batch(Batch(VERSION, 1, 1, [Stored(ROOT, pack_hashes([1, 2]))]))
    more: list[Event] = [
        Stored(2, pack_hashes([3, 4])),
        Removed(pack_hashes([4])),
        Stored(9, b"12345678"),
    ]
    later = encode_batch(Batch(VERSION, 1, 2, more))
    yield b"".join(len(one).to_bytes(2, "big") + one for one in (first, later))
    rng = random.Random(5)
    for length in range(20, 600, 20):
        yield bytes([STRUCTURED + rng.choice((5, 20, 127))]) + rng.randbytes(length)


def _load_seeds() -> Iterator[bytes]:
    yield bytes.fromhex("9ba84c6f6164537461740100cce0cd20000000cce0cd1000ccc8ce00016e3c")
    yield msgspec.json.encode({"loads": [{"dp_rank": 0, "num_running_reqs": 3}]})


def _split(data: bytes) -> Iterator[bytes]:
    """Yield records, each behind its length in two bytes."""
    while len(data) > 1:
        size = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + size]
        data = data[2 + size :]
