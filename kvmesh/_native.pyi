"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. `tests/unit/test_native_stub.py`
holds this file to the module.
"""

from collections.abc import Sequence
from typing import Any, Final, final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import (
    Drops,
    EndTables,
    FoldedMessage,
    FrozenTable,
    Holding,
    IndexView,
    TableLoader,
)

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

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  until all of them stand above
