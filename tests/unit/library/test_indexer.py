import random
import struct
import subprocess
import sys
from array import array

import pytest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    lookahead_digest,
    namespace_root,
    pack_hashes,
    sequence_hashes,
)
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.errors import CodecError, ConfigError, RequestError
from kvmesh.library.indexer import ApproxKvIndexer, KvIndexer
from kvmesh.library.listener import MeshView
from kvmesh.library.router import KvRouter

TOKENS = list(range(16 * 20 + 3))
HASHES = sequence_hashes(TOKENS, 16)


def filled() -> KvIndexer:
    indexer = KvIndexer(block_size=16)
    assert indexer.apply_event("one", Stored(ROOT, pack_hashes(HASHES))) == 0
    assert indexer.apply_event("two", Stored(ROOT, pack_hashes(HASHES[:5]))) == 0
    return indexer


def test_tokens_in_matches_out() -> None:
    indexer = filled()

    assert indexer.find_matches_for_request(TOKENS) == {"one": 20, "two": 5}
    assert indexer.find_matches_for_request(struct.pack("<323I", *TOKENS)) == {"one": 20, "two": 5}
    assert indexer.find_matches(HASHES[:3]) == {"one": 3, "two": 3}
    assert indexer.find_matches(BlockHashes(TOKENS, 16)) == {"one": 20, "two": 5}
    assert indexer.find_matches_for_request(TOKENS, root=namespace_root(tenant="x")) == {}
    assert indexer.workers() == ["one", "two"]


def test_a_grouped_workers_hit_ends_where_it_has_an_end() -> None:
    indexer = filled()
    key = extend_hash(HASHES[3], lookahead_digest(struct.pack("<2I", *TOKENS[64:66])))

    indexer.apply_event("one", Reuse())
    indexer.apply_event("one", Stored(ROOT, pack_hashes(HASHES[7:8]), ENDS))
    indexer.apply_event("two", Reuse(lookahead=2, drop=1))
    indexer.apply_event("two", Stored(ROOT, pack_hashes([key]), ENDS))

    assert indexer.find_matches_for_request(TOKENS) == {"one": 8, "two": 3}
    assert indexer.find_matches_for_request([*TOKENS[:64], 9, 9, 9]) == {}
    copy = KvIndexer(block_size=16)
    copy.restore(indexer.dump())
    assert copy.find_matches_for_request(TOKENS) == {"one": 8, "two": 3}
    assert copy.digest() == indexer.digest()


def test_hashes_are_never_taken_for_tokens() -> None:
    indexer = filled()
    small = KvIndexer()
    small.apply_event("one", Stored(ROOT, pack_hashes([3, 5])))

    matches = indexer.find_matches(HASHES)

    assert matches == matches.scores == {"one": 20, "two": 5}
    assert f"Cache Distribution: {matches}" == f"Cache Distribution: {dict(matches)}"
    assert indexer.find_matches(tuple(HASHES)) == matches
    assert indexer.find_matches(array("Q", HASHES)) == matches
    assert indexer.find_matches([]) == indexer.find_matches(TOKENS) == {}
    assert small.find_matches([3, 5, 7]) == {"one": 2}
    with pytest.raises(RequestError, match="hashes are integers"):
        indexer.find_matches([1, 1 << 64])
    with pytest.raises(RequestError, match="packed tokens are for find_matches_for_request"):
        indexer.find_matches(struct.pack("<2I", 1, 2))


class MeshOfThree:
    """A mesh whose workers hold some of `TOKENS`: 20 blocks, 5, and none."""

    def __init__(self, root: int = ROOT) -> None:
        router = KvRouter(random.Random(1), RouterOptions(block_size=16))
        hashes = sequence_hashes(TOKENS, 16, root)
        for worker, blocks in (("one", 20), ("two", 5), ("cold", 0)):
            router.add_worker(worker, 0.0)
            router.apply_event(worker, Stored(ROOT, pack_hashes(hashes[:blocks])))
        self.router = router
        self.root = root

    def view(self) -> MeshView:
        scheduler, index = self.router._scheduler, self.router._index
        assert index is not None
        return MeshView(scheduler, index.index, self.root, 1.0)


def test_an_indexer_of_a_mesh_names_every_worker_that_may_be_given_requests() -> None:
    mesh = MeshOfThree()
    indexer = KvIndexer(mesh)

    matches = indexer.find_matches_for_request(TOKENS)
    mesh.router.drain_worker("one", 1.0)

    assert matches == {"cold": 0, "one": 20, "two": 5}
    assert indexer.find_matches(HASHES) == {"cold": 0, "two": 5}
    assert KvIndexer(mesh, block_size=16).find_matches(BlockHashes(TOKENS, 16)) == {
        "cold": 0,
        "two": 5,
    }
    assert indexer.workers() == ["one", "two"]
    assert indexer.digest() == filled().digest()
    assert indexer.statistics().blocks == 20
    warm = KvIndexer(16)
    warm.restore(indexer.dump())
    assert warm.digest() == indexer.digest()


def test_an_indexer_of_a_mesh_with_a_secret_looks_in_its_namespace() -> None:
    secret = namespace_root(secret=b"sixteen bytes!!!")
    indexer = KvIndexer(MeshOfThree(secret))

    assert indexer.find_matches_for_request(TOKENS) == {"cold": 0, "one": 20, "two": 5}
    assert indexer.find_matches_for_request(TOKENS, ROOT) == {"cold": 0, "one": 0, "two": 0}


def test_the_block_size_is_the_meshs_and_its_contents_are_not_ours_to_change() -> None:
    mesh = MeshOfThree()
    indexer = KvIndexer(mesh)
    dump = indexer.dump()

    with pytest.raises(ConfigError, match="block_size=32, but the mesh's blocks have 16 tokens"):
        KvIndexer(mesh, block_size=32)
    for call in (
        lambda: indexer.apply_event("one", Cleared()),
        lambda: indexer.remove_worker("one"),
        indexer.clear,
        lambda: indexer.restore(dump),
    ):
        with pytest.raises(ConfigError, match="follows a mesh"):
            call()


def test_events_are_folded() -> None:
    indexer = filled()

    assert indexer.apply_event("three", Stored(HASHES[4], pack_hashes(HASHES[5:8]))) == 3
    indexer.apply_event("one", Removed(pack_hashes(HASHES[7:])))
    indexer.apply_event("two", Cleared())

    assert indexer.find_matches_for_request(TOKENS) == {"one": 7}
    assert indexer.statistics().orphans == 3


def test_a_removed_worker_is_gone_and_its_memory_follows() -> None:
    indexer = filled()

    indexer.remove_worker("one")

    assert indexer.find_matches_for_request(TOKENS) == {"two": 5}
    assert indexer.statistics().blocks == 20
    for _ in range(3):
        indexer.apply_event("two", Stored(ROOT, pack_hashes(HASHES[:5])))
    assert indexer.statistics().blocks == 5


def test_everything_can_be_cleared() -> None:
    indexer = filled()

    indexer.clear()

    assert (indexer.workers(), indexer.digest()) == ([], 0)


def test_a_dump_is_restored_elsewhere() -> None:
    first, second = filled(), KvIndexer(block_size=16)
    second.apply_event("gone", Stored(ROOT, pack_hashes([1, 2, 3])))

    snapshot = second.restore(first.dump(Position("s", 9), [WorkerRecord("one", 2, 8)]))  # type: ignore[arg-type]  # any name

    assert (snapshot.position.sequence, snapshot.records[0].next_seq) == (9, 8)
    assert second.digest() == first.digest() != 0
    assert second.find_matches_for_request(TOKENS) == {"one": 20, "two": 5}


def test_a_bad_dump_changes_nothing() -> None:
    indexer = filled()
    digest = indexer.digest()

    with pytest.raises(CodecError):
        indexer.restore(indexer.dump()[:-1])

    assert indexer.digest() == digest


def test_routing_decisions_are_believed_for_a_while() -> None:
    indexer = ApproxKvIndexer(block_size=16, ttl_s=120.0)

    indexer.process_routing_decision_for_request(TOKENS, "one", now=0.0)
    indexer.process_routing_decision_for_request(TOKENS[:100], "two", now=60.0)

    assert indexer.find_matches_for_request(TOKENS, now=100.0) == {"one": 20, "two": 6}
    assert indexer.find_matches(HASHES[:3], now=100.0) == {"one": 3, "two": 3}
    assert indexer.find_matches_for_request(TOKENS, now=121.1) == {"two": 6}
    assert indexer.workers() == ["one", "two"]
    indexer.remove_worker("two")
    assert indexer.find_matches_for_request(TOKENS, now=121.1) == {}
    assert indexer.statistics().entries == 0


LIBRARY_ONLY = """
import sys
from importlib.abc import MetaPathFinder

class Forbid(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        wire = ("asyncio", "faststream", "http", "httptools", "nats", "socket", "uvloop", "zmq")
        if name.split(".")[0] in wire or name.startswith(("kvmesh.transport", "kvmesh.app")):
            raise AssertionError(f"the library imports {name}")
        return None

sys.meta_path.insert(0, Forbid())
from kvmesh.core.blocks.events import ROOT, Stored
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.library.indexer import ApproxKvIndexer, KvIndexer

tokens = list(range(100))
exact, approx = KvIndexer(block_size=16), ApproxKvIndexer(block_size=16)
exact.apply_event("w", Stored(ROOT, pack_hashes(sequence_hashes(tokens, 16))))
approx.process_routing_decision_for_request(tokens, "w", now=0.0)
print(exact.find_matches_for_request(tokens), approx.find_matches_for_request(tokens, now=1.0))
"""


def test_the_library_needs_neither_nats_nor_http_nor_an_event_loop() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY_ONLY], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout == "{'w': 6} {'w': 6}\n"
