"""What the index asks of a table of blocks: the pure one and the compiled one do the same."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Protocol, Self

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes

Drops = list[tuple[int, int]]
"""(depth in blocks, mask of the workers whose cached prefix ends there), deepest first."""

Groups = list[tuple[int, tuple[WorkerId, ...]]]
"""Disjoint (depth in blocks, workers), deepest first, depth > 0."""

EndTables = tuple["Table | None", "Table | None", tuple[tuple[int, int, int], ...]]
"""Where hits of grouped workers end in one tier: the ends of its newer and older table, and the
rules, each (lookahead in tokens, blocks dropped, mask of its workers); masks are disjoint.
"""

FoldedMessage = tuple[int, int, int, int, int, list[bytes] | None]
"""What a message did: events; blocks stored, refused ones included; removed, those not held
included; not held; refused behind a parent not held; and each run removed, None without any.
"""


class Holding(Protocol):
    """What one worker holds in one table; `digest` is the sum of its hashes, perhaps mod 2^64."""

    blocks: int
    digest: int

    @property
    def bit(self) -> int:
        """Return the mask with the worker's bit alone."""
        ...


class FrozenPart(Protocol):
    """The columns of one shard, made in slices."""

    def prepare(self) -> tuple[int, int] | None:
        """Do a slice of what comes before the columns; at its end return how many blocks there are,
        and how many bytes the number of a set takes.
        """
        ...

    def piece(self) -> bytes | None:
        """Return the next bytes of the columns, perhaps none; None behind the last ones."""
        ...


class FrozenTable(Protocol):
    """A table as it was, until `close`; each shard is read once, with any call but `blocks`."""

    def blocks(self, number: int, /) -> int:
        """Return how many blocks of one shard there are to be read, at most."""
        ...

    def take(self, number: int, /) -> dict[int, int]:
        """Return key -> mask of one shard, not to be changed, or kept for long."""
        ...

    def columns(
        self, number: int, live: int | None, numbers: dict[int, int], /, *older: Self
    ) -> tuple[int, int, bytes]:
        """Return how many blocks of one shard, of this table and an older one together, a snapshot
        has, in which width, and its columns.

        See `core.snapshots`. With `live` only its bits count; `numbers` numbers masks, and grows.
        """
        ...

    def part(
        self, number: int, live: int | None, numbers: dict[int, int], /, *older: Self
    ) -> FrozenPart:
        """Return what makes the same in slices."""
        ...

    def close(self) -> None:
        """Copy no more; safe to call twice."""
        ...


class TableLoader(Protocol):
    """Fills an empty table; number n stands for the n-th of the masks it was made with."""

    def add(self, shard: int, keys: memoryview, numbers: memoryview, width: int, /) -> bool:
        """Add blocks of a shard: 7 bytes a key, `width` bytes a number; False when one comes twice.

        Raises `IndexError` for a number that there is not.
        """
        ...

    def total(self, number: int, /) -> tuple[int, int]:
        """Return how many blocks a mask got, and the sum of their hashes, perhaps mod 2^64."""
        ...


class IndexView(Protocol):
    """Tables, the worker of each slot, and which slots count: what a search needs of an index.

    It never changes, but what the tables hold does.
    """

    @property
    def young(self) -> "Table":
        """Return the table, the newer one of two."""
        ...

    @property
    def old(self) -> "Table | None":
        """Return the older table."""
        ...

    @property
    def names(self) -> tuple[WorkerId, ...]:
        """Return the worker of each slot; one that does not count may be anybody's."""
        ...

    @property
    def live(self) -> int:
        """Return the mask of the slots that count."""
        ...

    def find_matches(self, hashes: Hashes, /) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it."""
        ...

    def find_groups(self, hashes: Hashes, /) -> Groups:
        """Return disjoint (depth, workers), deepest first, depth > 0."""
        ...

    def find_hits(self, hashes: Hashes, /) -> tuple[Groups, dict[WorkerId, int]]:
        """Return the groups, and whose hit is shorter than the chain of blocks that they hold: how
        long that is.
        """
        ...

    def sizes(self) -> list[int]:
        """Return how many blocks the worker of each slot holds, 0 where the slot does not count."""
        ...


class Table(Protocol):
    """Block hash -> mask of the workers that hold it. Runs of blocks are packed u64s."""

    @property
    def holdings(self) -> MutableMapping[WorkerId, Holding]:
        """Return what each worker holds."""
        ...

    def admit(self, worker: WorkerId, bit: int, /) -> Holding:
        """Return the holding of `worker`, made when there is none."""
        ...

    def holds(self, bit: int, block: int, /) -> bool:
        """Return whether the worker with that bit holds `block`."""
        ...

    def mask(self, block: int, /) -> int:
        """Return the mask of those who hold a block, 0 for nobody."""
        ...

    def extend(self, holding: Holding, parent: int, run: bytes, /) -> bool:
        """Add blocks behind `parent`, as `store`; False, and no change, when it is not held."""
        ...

    def store(self, holding: Holding, run: bytes, /) -> None:
        """Add blocks; those already held change nothing."""
        ...

    def remove(self, holding: Holding, run: bytes, /) -> list[int]:
        """Take blocks away; return those that were not held."""
        ...

    def fold(
        self, holding: Holding, data: bytes, epoch: int, first_seq: int, room: int, /
    ) -> FoldedMessage | None:
        """Apply a journal message at once if it is ordinary; None, and no change, if it is not.

        Ordinary ones are of that epoch, begin with that event, and hold nothing but what is stored,
        at most `room` blocks, and removed in device memory. A table may take none for ordinary.
        """
        ...

    def fold_ends(
        self,
        holding: Holding,
        data: bytes,
        epoch: int,
        first_seq: int,
        room: int,
        ends: tuple[Self, Holding],
        /,
    ) -> tuple[FoldedMessage, int, int] | None:
        """Do the same where the worker's ends of device memory, with where they are kept, are
        ordinary too; return also how many ends were told, and taken back that were none.
        """
        ...

    def move(self, run: bytes, mask: int, target: Self, /) -> None:
        """Move blocks, which nobody alive outside `mask` holds here, into another table.

        The caller accounts for the holdings.
        """
        ...

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included."""
        ...

    def clear_bits(self, number: int, dead: int, place: int, /) -> tuple[int, int]:
        """Clear the bits of `dead` in a slice of one shard, the first one at place 0; return about
        how many blocks it had, and the place of the next one, 0 behind the last.
        """
        ...

    def find_drops(self, hashes: Hashes, live: int, older: Self | None = None, /) -> Drops:
        """Return where along a prompt workers drop out, of this table and an older one together.

        See `search.find_drops`.
        """
        ...

    def view(
        self,
        older: Self | None,
        names: Sequence[WorkerId],
        live: int,
        ends: "EndTables | None" = None,
        /,
    ) -> IndexView:
        """Return a view of this table and an older one; of grouped workers, with their `ends`.

        Raises `ValueError` where `live` has a slot without a name. O(workers).
        """
        ...

    def freeze(self) -> FrozenTable:
        """Return this table as it is now, for as long as the result is not closed."""
        ...

    def loader(self, masks: list[int], /) -> TableLoader:
        """Return what fills this table, which must be empty."""
        ...

    def pieces(self) -> list[object]:
        """Return what holds the memory of a table that is not used any more, to be let go piece by
        piece.
        """
        ...


NewTable = Callable[[], Table]
