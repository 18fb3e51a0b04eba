"""The index as a library: tokens in, cached prefix lengths out; no NATS, no HTTP, no event loop.

indexer = KvIndexer(block_size=16)
hashes = sequence_hashes(token_ids, 16)
indexer.apply_event("worker-0", Stored(ROOT, pack_hashes(hashes)))
indexer.find_matches_for_request(token_ids)   # {"worker-0": len(token_ids) // 16}
"""

from collections.abc import Iterable, Sequence
from typing import Final, cast

from kvmesh.core.blocks.events import ROOT, Event, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Tokens
from kvmesh.core.index.index import DEFAULT_MAX_BLOCKS, KvIndex
from kvmesh.core.index.statistics import IndexStatistics
from kvmesh.core.overlap.approx import (
    DEFAULT_MAX_ENTRIES,
    DEFAULT_TTL_S,
    ApproxIndex,
    ApproxStatistics,
)
from kvmesh.core.snapshots.reading import Snapshot, decode_snapshot
from kvmesh.core.snapshots.writing import Position, WorkerRecord, encode_snapshot

_SWEEP_BLOCKS: Final = 1024


class KvIndexer:
    """Which worker holds how much of a prompt, exactly, folded from KV events.

    Units are full blocks of `block_size` tokens; a trailing partial block never counts. Hashes are
    `hashing.sequence_hashes`, one u64 a block, root first. Not thread-safe. About 80 B of memory a
    distinct block; beyond `max_blocks` unmatched blocks are evicted (see `core.index.cap`).
    Source: the calls mirror NVIDIA Dynamo's `KvIndexer` and `RadixTree` bindings.
    """

    def __init__(self, block_size: int = 16, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self.block_size = block_size
        self._max_blocks = max_blocks
        self._index = KvIndex(max_blocks)
        self._unclean = False

    def apply_event(self, worker_id: str, event: Event) -> int:
        """Fold one event of a worker; return how many blocks a gap kept out, 0 when all is well.

        A gap is a store behind a block that the worker does not hold: ask it for all it has
        (`Cleared`, then `Stored`s). Idempotent. O(blocks), about 0.5 us each.
        """
        if self._unclean:
            self._unclean = not self._index.sweep(_SWEEP_BLOCKS)
        return self._index.apply(WorkerId(worker_id), event)

    def find_matches_for_request(self, token_ids: Tokens, root: int = ROOT) -> dict[str, int]:
        """Return {worker id: cached prefix in blocks} of a prompt, without workers that have none.

        `token_ids` are ints, or a buffer of u32s (bytes, array, numpy), which is quicker. `root`
        is the namespace (`hashing.namespace_root`). O(tokens that match + log(depth) a drop).
        Raises `RequestError` for a token that is no u32.
        """
        return self.find_matches(BlockHashes(token_ids, self.block_size, root))

    def find_matches(self, hashes: Sequence[int] | BlockHashes) -> dict[str, int]:
        """Return {worker id: cached prefix in blocks} of a prompt's hashes, root first.

        O(log(depth)) per depth at which some worker's prefix ends; it hardly depends on how many
        workers or blocks there are.
        """
        matches = self._index.find_matches(_block_hashes(hashes, self.block_size))
        return cast("dict[str, int]", matches)

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker. O(1): later calls of `apply_event` give the memory back bit by bit."""
        self._index.remove_worker(WorkerId(worker_id))
        self._unclean = True

    def clear(self) -> None:
        """Forget everything. O(1) for the caller; freeing the memory is O(blocks)."""
        self._index = KvIndex(self._max_blocks)
        self._unclean = False

    def dump(self, position: Position | None = None, records: Iterable[WorkerRecord] = ()) -> bytes:
        """Return everything as bytes, about 10 a block. O(blocks), about 0.2 us each."""
        frozen = self._index.freeze()
        return b"".join(encode_snapshot(frozen, position or Position(), records))

    def restore(self, data: bytes) -> Snapshot:
        """Replace everything by what `dump` returned; return the position and records in it.

        O(blocks), about 0.3 us each. Raises `CodecError`, and changes nothing, for other bytes.
        """
        snapshot = decode_snapshot(data)
        self._index.load(snapshot.image, snapshot.truncated)
        self._unclean = False
        return snapshot

    def digest(self) -> int:
        """Return one u64 that is equal for equal contents, whatever their history. O(workers)."""
        return self._index.digest()

    def workers(self) -> list[str]:
        """Return the ids of all workers that stored anything and were not removed."""
        return [*self._index.workers()]

    def statistics(self) -> IndexStatistics:
        """Return sizes and counts. O(workers)."""
        return self._index.statistics()


class ApproxKvIndexer:
    """Which worker probably holds how much of a prompt: what was sent to it in the last `ttl_s`.

    Needs no events. The caller brings the clock: `now` in seconds, from any start, never back.
    Units and hashes as in `KvIndexer`; limits as in `core.overlap.approx.ApproxIndex`.
    Source: the calls mirror NVIDIA Dynamo's `ApproxKvIndexer`.
    """

    def __init__(
        self,
        block_size: int = 16,
        ttl_s: float = DEFAULT_TTL_S,
        *,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        worker_blocks: int | None = None,
    ) -> None:
        self.block_size = block_size
        self._index = ApproxIndex(ttl_s, max_entries=max_entries, worker_blocks=worker_blocks)

    def process_routing_decision_for_request(
        self, token_ids: Tokens, worker_id: str, now: float, root: int = ROOT
    ) -> None:
        """Take the news that a prompt was sent to a worker. O(tokens), 0.5 us a new block.

        `token_ids` and `root` as in `KvIndexer.find_matches_for_request`. Raises `RequestError`.
        """
        self._index.sweep(_SWEEP_BLOCKS)
        hashes = BlockHashes(token_ids, self.block_size, root)
        self._index.record(WorkerId(worker_id), hashes, now)

    def find_matches_for_request(
        self, token_ids: Tokens, now: float, root: int = ROOT
    ) -> dict[str, int]:
        """Return {worker id: prefix probably cached, in blocks} of a prompt at `now`.

        Complexity as of `KvIndexer.find_matches_for_request`, and what ended by `now` is dropped.
        Raises `RequestError` for a token that is no u32.
        """
        return self.find_matches(BlockHashes(token_ids, self.block_size, root), now)

    def find_matches(self, hashes: Sequence[int] | BlockHashes, now: float) -> dict[str, int]:
        """Return {worker id: prefix probably cached, in blocks} of a prompt's hashes at `now`.

        `hashes` are one u64 a block, root first. Complexity as of `KvIndexer.find_matches`.
        """
        self._index.expire(now)
        matches = self._index.find_matches(_block_hashes(hashes, self.block_size))
        return cast("dict[str, int]", matches)

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker. O(1): later routing decisions give the memory back bit by bit."""
        self._index.remove_worker(WorkerId(worker_id))

    def workers(self) -> list[str]:
        """Return the ids of all workers that anything was sent to and that were not removed."""
        return [*self._index.workers()]

    def statistics(self) -> ApproxStatistics:
        """Return sizes and counts. O(workers)."""
        return self._index.statistics()


def _block_hashes(hashes: Sequence[int] | BlockHashes, block_size: int) -> BlockHashes:
    return hashes if isinstance(hashes, BlockHashes) else BlockHashes.of(hashes, block_size)
