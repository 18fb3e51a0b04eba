"""What the index is told by a table of blocks, and the things that a table makes.

The table is `kvmesh._native.Table`; the types of what it makes have no name outside the C.
"""

from typing import Protocol, Self

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes

Drops = list[tuple[int, int]]
"""(depth in blocks, mask of the workers whose cached prefix ends there), deepest first."""

Groups = list[tuple[int, tuple[WorkerId, ...]]]
"""Disjoint (depth in blocks, workers), deepest first, depth > 0."""

EndTables = tuple[Table | None, Table | None, tuple[tuple[int, int, int], ...]]
"""Where hits of grouped workers end in one tier: the ends of its newer and older table, and the
rules, each (lookahead in tokens, blocks dropped, mask of its workers); masks are disjoint.
"""

FoldedMessage = tuple[int, int, int, int, int, list[bytes] | None]
"""What a message did: events; blocks stored, refused ones included; removed, those not held
included; not held; refused behind a parent not held; and each run removed, None without any.
"""


class Holding(Protocol):
    """What one worker holds in one table; `digest` is the sum of its hashes, mod 2^64."""

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
        self, number: int, live: int | None, numbers: dict[int, int], older: Self | None = None, /
    ) -> tuple[int, int, bytes]:
        """Return how many blocks of one shard, of this table and an older one together, a snapshot
        has, in which width, and its columns.

        See `core.index`. With `live` only its bits count; `numbers` numbers masks, and grows.
        """
        ...

    def part(
        self, number: int, live: int | None, numbers: dict[int, int], older: Self | None = None, /
    ) -> FrozenPart:
        """Return what makes the same in slices."""
        ...

    def close(self) -> None:
        """Copy no more; safe to call twice."""
        ...


class TableLoader(Protocol):
    """Fills an empty table; number n stands for the n-th of the masks it was made with."""

    def add(self, shard: int, keys: memoryview, numbers: memoryview, width: int, /) -> bool:
        """Add blocks of a shard: 7 bytes a key, `width` bytes a number, 2 or 4; False when one
        comes twice. 20 ns a block.

        Raises `IndexError` for a number that there is not, `ValueError` for a shard with blocks.
        """
        ...

    def total(self, number: int, /) -> tuple[int, int]:
        """Return how many blocks a mask got, and the sum of their hashes, mod 2^64."""
        ...


class IndexView(Protocol):
    """Tables, the worker of each slot, and which slots count: what a search needs of an index.

    It never changes, but what the tables hold does.
    """

    @property
    def young(self) -> Table:
        """Return the table, the newer one of two."""
        ...

    @property
    def old(self) -> Table | None:
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
