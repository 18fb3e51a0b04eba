"""The index as a library: tokens in, cached prefix lengths out; no NATS, no HTTP, no event loop.

indexer = KvIndexer(block_size=16)
hashes = sequence_hashes(token_ids, 16)
indexer.apply_event("worker-0", Stored(ROOT, pack_hashes(hashes)))
indexer.find_matches_for_request(token_ids)   # {"worker-0": len(token_ids) // 16}

indexer = KvIndexer(await kvmesh.follow(nats_url, bucket))   # the same of a live mesh
"""

from collections.abc import Iterable, Sequence
from typing import Final, cast, overload

from kvmesh.bounds import DEFAULT_MAX_BLOCKS
from kvmesh.core.blocks.events import ROOT, Event, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Tokens, pack_tokens
from kvmesh.core.index.approx import (
    DEFAULT_MAX_ENTRIES,
    DEFAULT_TTL_S,
    ApproxStatistics,
    new_approx,
)
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import Snapshot
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord, encode_snapshot
from kvmesh.core.index.statistics import IndexStatistics
from kvmesh.errors import ConfigError, RequestError
from kvmesh.library.closed_index import ClosedIndex
from kvmesh.library.listener import Listener, Matches

DEFAULT_BLOCK_SIZE: Final = 16
_SWEEP_BLOCKS: Final = 1024


class KvIndexer:
    """Which worker holds how much of a prompt: folded from KV events, or followed in a live mesh.

    Units are full blocks of `block_size` tokens; a trailing partial block never counts. Hashes are
    `hashing.sequence_hashes`, one u64 a block, root first. Not thread-safe. About 80 B of memory a
    distinct block, and 250 B a block that a worker holds; beyond `max_blocks` unmatched blocks are
    evicted (see `core.index.cap`). A worker is never credited with more than it holds from a
    prompt's first block on: what is behind a removed block counts again when that is stored again.

    With a `listener` (`kvmesh.follow`) it knows what that mesh's routers know: what events tell,
    and for some seconds what was routed. The block size is the mesh's. Matches then name every
    worker that may be given requests, with 0 where nothing is cached: a choice among them can fall
    on a cold one. They are empty while no worker may be given any.
    Source: the calls mirror NVIDIA Dynamo's `KvIndexer` and `RadixTree` bindings.
    """

    @overload
    def __init__(self, block_size: int, /, *, max_blocks: int = ...) -> None: ...

    @overload
    def __init__(self, *, block_size: int = ..., max_blocks: int = ...) -> None: ...

    @overload
    def __init__(self, listener: Listener, block_size: int | None = None) -> None: ...

    def __init__(
        self,
        listener: Listener | int | None = None,
        block_size: int | None = None,
        *,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
    ) -> None:
        """Raises `ConfigError` for a `block_size` that is not the mesh's."""
        if isinstance(listener, int):
            listener, block_size = None, listener
        self._listener = listener
        if listener is not None:
            _check_size(block_size, listener.view().block_size)
        self._block_size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
        self._max_blocks = max_blocks
        self._index = ClosedIndex(max_blocks)

    @property
    def block_size(self) -> int:
        """Return how many tokens a block has: with a listener, in its mesh and now."""
        return self._block_size if self._listener is None else self._listener.view().block_size

    def apply_event(self, worker_id: str, event: Event) -> int:
        """Fold one event of a worker; return how many blocks a gap kept out, 0 when all is well.

        A gap is a store behind a block that the worker does not hold, or of more blocks than
        `max_blocks`. What is behind a block that was removed counts when that is stored again; if
        events were lost, ask the worker for all it has (`Cleared`, then `Stored`s). Removals come
        in any order. Idempotent. O(blocks), about 2 us each in runs, 6 us alone. Raises
        `CodecError` for hashes that are not whole u64s, `ConfigError` with a listener, whose mesh
        has its workers' events; so does all else that writes.
        """
        self._refuse_listener("apply_event")
        return self._index.apply(WorkerId(worker_id), event)

    def find_matches_for_request(self, token_ids: Tokens, root: int | None = None) -> Matches:
        """Return {worker id: cached prefix in blocks} of a prompt, without workers that have none
        (with a listener: with every worker that may be given requests).

        `token_ids` are ints, or a buffer of u32s (bytes, array, numpy), which is quicker. `root`
        is the namespace (`hashing.namespace_root`); None: that of plain prompts. O(tokens that
        match + log(depth) a drop). Raises `RequestError` for a token that is no u32.
        """
        if root is None:
            root = ROOT if self._listener is None else self._listener.view().root
        ids = pack_tokens(token_ids) if self._needs_ids() else None
        return self._find(BlockHashes(token_ids, self.block_size, root, ids))

    def find_matches(self, hashes: Sequence[int] | BlockHashes) -> Matches:
        """Return {worker id: cached prefix in blocks} of a prompt's hashes, one u64 a block, root
        first. Tokens are for `find_matches_for_request`: as hashes they match nothing.

        O(log(depth)) per depth at which some worker's prefix ends; it hardly depends on how many
        workers or blocks there are. Raises `RequestError` for bytes, and for what is no u64.
        """
        if isinstance(hashes, (bytes, bytearray, memoryview)):
            raise RequestError(
                "find_matches takes hashes as a sequence of integers; packed tokens are for "
                "find_matches_for_request"
            )
        return self._find(_block_hashes(hashes, self.block_size))

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker. O(1): later calls of `apply_event` give the memory back bit by bit."""
        self._refuse_listener("remove_worker")
        self._index.remove_worker(WorkerId(worker_id))

    def clear(self) -> None:
        """Forget everything. O(1) for the caller; freeing the memory is O(blocks)."""
        self._refuse_listener("clear")
        self._index = ClosedIndex(self._max_blocks)

    def dump(self, position: Position | None = None, records: Iterable[WorkerRecord] = ()) -> bytes:
        """Return everything as bytes, about 10 a block. O(blocks), about 0.2 us each."""
        frozen = self._read().freeze()
        return b"".join(encode_snapshot(frozen, position or Position(), records))

    def restore(self, data: bytes) -> Snapshot:
        """Replace everything by what `dump` returned; return the position and records in it.

        A dump does not tell which block is behind which. Until a worker was asked for all it has,
        a removed block of the dump ends only itself: of that worker's, remove later blocks first.
        O(blocks), about 0.3 us each. Raises `CodecError`, and changes nothing, for other bytes.
        """
        self._refuse_listener("restore")
        return self._index.restore(data)

    def digest(self) -> int:
        """Return one u64 that is equal for equal contents, whatever their history. O(workers)."""
        return self._read().digest()

    def workers(self) -> list[str]:
        """Return the ids of all workers that stored anything and were not removed."""
        return [*self._read().workers()]

    def statistics(self) -> IndexStatistics:
        """Return sizes and counts. O(workers)."""
        return self._read().statistics()

    def _needs_ids(self) -> bool:
        if self._listener is None:
            return self._index.index.ends.has_lookahead
        return self._listener.view().scheduler.overlaps.has_lookahead()

    def _read(self) -> KvIndex:
        return self._index.index if self._listener is None else self._listener.view().index

    def _find(self, hashes: BlockHashes) -> Matches:
        if self._listener is None:
            return Matches(cast("dict[str, int]", self._index.index.find_matches(hashes)))
        view = self._listener.view()
        found, _ = view.scheduler.overlaps.find_groups(hashes, view.now)
        usable = view.scheduler.workers.everyone(view.now)
        return Matches({worker: found.get(worker, 0) for worker in usable})

    def _refuse_listener(self, call: str) -> None:
        if self._listener is not None:
            raise ConfigError(
                f"{call} on an indexer that follows a mesh: its contents are the mesh's; make a "
                "KvIndexer(block_size=…) of your own for other events"
            )


class ApproxKvIndexer:
    """Which worker probably holds how much of a prompt: what was sent to it in the last `ttl_s`.

    Needs no events. The caller brings the clock: `now` in seconds, from any start, never back.
    Units and hashes as in `KvIndexer`; limits as in `core.index.approx.new_approx`.
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
        self._index = new_approx(ttl_s, max_entries=max_entries, worker_blocks=worker_blocks)

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


def _check_size(asked: int | None, block_size: int) -> None:
    if asked not in (None, block_size):
        raise ConfigError(
            f"block_size={asked}, but the mesh's blocks have {block_size} tokens: leave it out"
        )


def _block_hashes(hashes: Sequence[int] | BlockHashes, block_size: int) -> BlockHashes:
    return hashes if isinstance(hashes, BlockHashes) else BlockHashes.of(hashes, block_size)
