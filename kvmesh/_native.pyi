"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. What is not here yet is in
`kvmesh/compiled.py`.
"""

from collections.abc import Sequence
from typing import Final, final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import (
    Drops,
    EndTables,
    FoldedMessage,
    FrozenTable,
    Groups,
    Holding,
    IndexView,
    TableLoader,
)
from kvmesh.core.overlap.approx import ApproxStatistics

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""

# ---- transport: heads, HTTP/1 requests, HTTP/2, ext_proc, ends of requests ----

# ---- index: table, beliefs, hash chains ----

@final
class Table:
    """Block hash -> mask of the workers that hold it, for one tier. About 35 B a block.

    Runs of blocks are packed u64s; holdings are the table's own.
    """

    @property
    def holdings(self) -> dict[WorkerId, Holding]:
        """What each worker holds."""

    def __new__(cls) -> Table: ...
    def admit(self, worker: WorkerId, bit: int, /) -> Holding:
        """Return the holding of `worker`, made when there is none."""

    def holds(self, bit: int, block: int, /) -> bool:
        """Return whether the worker with that bit holds `block`."""

    def mask(self, block: int, /) -> int:
        """Return the mask of those who hold a block, 0 for nobody."""

    def extend(self, holding: Holding, parent: int, run: bytes, /) -> bool:
        """Add blocks behind `parent` (0: the root), as `store`; False, and no change, when it is
        not held.
        """

    def store(self, holding: Holding, run: bytes, /) -> None:
        """Add blocks; those already held change nothing. 50 ns a block."""

    def remove(self, holding: Holding, run: bytes, /) -> list[int]:
        """Take blocks away; return those that were not held."""

    def fold(
        self, holding: Holding, data: bytes, epoch: int, first_seq: int, room: int, /
    ) -> FoldedMessage | None:
        """Apply a journal message at once if it is ordinary; None, and no change, if it is not.

        Ordinary ones are of that epoch, begin with that event, and hold nothing but what is stored,
        at most `room` blocks, and removed in device memory.
        """

    def fold_ends(
        self,
        holding: Holding,
        data: bytes,
        epoch: int,
        first_seq: int,
        room: int,
        ends: tuple[Table, Holding],
        /,
    ) -> tuple[FoldedMessage, int, int] | None:
        """Do the same where the worker's ends of device memory, with where they are kept, are
        ordinary too; return also how many ends were told, and taken back that were none.
        """

    def move(self, run: bytes, mask: int, target: Table, /) -> None:
        """Move blocks, which nobody alive outside `mask` holds here, into another table.

        The caller accounts for the holdings.
        """

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included."""

    def clear_bits(self, number: int, dead: int, place: int, /) -> tuple[int, int]:
        """Clear the bits of `dead` in a slice of one shard, the first one at place 0; return about
        how many blocks it had, and the place of the next one, 0 behind the last. 0.7 ms.
        """

    def find_drops(self, hashes: Hashes, live: int, older: Table | None = None, /) -> Drops:
        """Return where along a prompt workers drop out, of this table and an older one together.

        Only bits of `live` count; others may stand anywhere. O(drops x log(depth)) look-ups: of
        prefix-closed workers masks only lose bits along a prompt, so two equal ones have nothing
        but equal ones between them. Hashes at most `AHEAD` blocks, or a quarter, of the prompt
        beyond what is held.
        """

    def view(
        self,
        older: Table | None,
        names: Sequence[WorkerId],
        live: int,
        ends: EndTables | None = None,
        /,
    ) -> IndexView:
        """Return a view of this table and an older one; of grouped workers, with their `ends`.

        Raises `ValueError` where `live` has a slot without a name. O(workers).
        """

    def freeze(self) -> FrozenTable:
        """Return this table as it is now, for as long as the result is not closed. O(shards)."""

    def loader(self, masks: list[int], /) -> TableLoader:
        """Return what fills this table, which must be empty."""

    def pieces(self) -> list[object]:
        """Return what holds the memory of a table that is not used any more, to be let go piece by
        piece; while a view is open nothing is forgotten, and the pieces hold nothing.
        """

@final
class Approx:
    """Believes a prompt cached where it was sent, for a while, as `new_approx` says.

    Entries, (worker, block) pairs, leave in `expire` and `record`, not by themselves.
    """

    ttl_s: float
    """How long a prompt counts, seconds."""

    @property
    def next_end(self) -> float:
        """Before it there is nothing to `expire`; infinite where nothing is believed."""

    @property
    def changes(self) -> int:
        """A count that moves whenever a worker gets a slot or loses it."""

    def __new__(
        cls,
        statistics: type[ApproxStatistics],
        ttl_s: float,
        limits: tuple[int, int, int | None],
        longest_tick_s: float,
        keeps: int,
        /,
    ) -> Approx:
        """`limits`: most entries, those that pruning leaves, most blocks of a worker or None.

        `keeps` of a prompt 0: each block, 1: thinned, 2: graded. Raises `ValueError` for another
        way, and for a worker's limit below 0.
        """

    def record(
        self,
        worker: WorkerId,
        hashes: Hashes | Sequence[int],
        now: float,
        /,
        ttl_s: float | None = None,
    ) -> None:
        """Believe the blocks of `hashes`, root first, cached at `worker` from `now` on.

        `ttl_s` is for this prompt, default the index's own. What ended before `now` is dropped on
        the way, a slice at a time. O(log(depth) + depth / 64 + blocks not believed yet).
        """

    def record_graded(
        self,
        worker: WorkerId,
        graded: Sequence[int],
        blocks: int,
        now: float,
        /,
        ttl_s: float | None = None,
    ) -> None:
        """Do as `record` with a prompt of so many `blocks` of which `grade` made `graded`.

        What `grade` cannot have made of so many does not count. Raises `ValueError` unless the
        index keeps graded blocks.
        """

    def expire(self, now: float, /, budget: int | None = None) -> bool:
        """Drop what ended before or at `now`; True when nothing of it is left.

        `budget` bounds the entries dropped in this call.
        """

    def revoke(self, worker: WorkerId, hashes: bytes, /) -> None:
        """Take the news that `worker` holds these packed blocks no longer, nor what follows them.

        O(blocks given, and dropped).
        """

    def remove_worker(self, worker: WorkerId, /) -> None:
        """Forget everything believed of `worker`. O(1); `sweep` gives the memory back."""

    def sweep(self, budget: int, /) -> bool:
        """Do about `budget` blocks of cleaning up after removals; True when nothing is left."""

    def workers(self) -> list[WorkerId]:
        """Return the workers that something was recorded for."""

    def blocks(self, worker: WorkerId, /) -> int:
        """Return how many blocks `worker` is believed to hold."""

    def sizes(self, workers: Sequence[WorkerId], /) -> list[int]:
        """Return how many blocks each of `workers` is believed to hold."""

    def find_matches(self, hashes: Hashes, /) -> dict[WorkerId, int]:
        """Return the prefix length believed cached, in blocks, per worker that has any."""

    def find_groups(self, hashes: Hashes, /) -> Groups:
        """Return disjoint (depth, workers), deepest first."""

    def find_known(self, hashes: Sequence[int], /) -> Groups:
        """Return the same of hashes that are all there, as a decision finds them."""

    def statistics(self) -> ApproxStatistics:
        """Return sizes and counts."""

def chain(
    seed: int, packed: bytes | bytearray | memoryview, start: int, width: int, count: int, /
) -> list[int]:
    """Return the hashes of `count` blocks of `width` bytes from byte `start` of a buffer on, each
    seeded with the one before, the first with `seed` modulo 2^64.

    Raises `ValueError` when they do not fit. About 25 ns a block of 64 bytes.
    """

def chain_tokens(
    seed: int, tokens: Sequence[int], first: int, size: int, count: int, /
) -> bytes | None:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    None, for someone else to look closer, when `tokens` are no list or tuple, too few, or one of
    them is no plain int from 0 to 2^32 - 1. About 2 ns a token.
    """

def pack_chain(
    seed: int, tokens: bytes | bytearray | memoryview | str, first: int, size: int, count: int, /
) -> bytes:
    """Return the same of a buffer of u32s, or of a string: its code points.

    Raises `ValueError` when there are fewer. About 10 ns a block of 16 tokens.
    """

def pack_u64s(hashes: Sequence[int], /) -> bytes | None:
    """Return a list or tuple of ints as native u64s.

    None, for someone else to look closer, when it is neither, or one of them is no plain int from
    0 to 2^64 - 1. About 2 ns a hash.
    """

# ---- engines and prompts: engines' caches, event streams, bodies, texts ----

# ---- workers and routing: loads, bookings, speeds, lengths, replicas' bookings ----

# ---- insight: records, totals, histograms ----

# ---- decision: formulas, courses, the decider ----
