"""The formats of what outlives one message, and which of them a process reads and writes.

Each kind counts its formats from 1, and has that one so far. A build reads its newest format and
the one before it; it writes the newest that every live reader reads, so that a fleet of two
neighbouring versions loses nothing on the way up or back (docs/operate/upgrade.md).
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal, assert_never

import msgspec
from msgspec import Meta

from kvmesh.bounds import shown

MAX_FORMAT: Final = 2**16 - 1

FormatNumber = Annotated[int, Meta(ge=1, le=MAX_FORMAT)]

VersionText = Annotated[str, Meta(max_length=64)]
"""A version of kvmesh, for people; "" for one that is not told."""

Kind = Literal["journal", "bookings", "snapshot", "manifest", "programs"]
KINDS: Final[tuple[Kind, ...]] = ("journal", "bookings", "snapshot", "manifest", "programs")


class FormatRange(msgspec.Struct, frozen=True, array_like=True):
    """The formats from `oldest` to `newest`, both included."""

    oldest: FormatNumber = 1
    newest: FormatNumber = 1

    def __post_init__(self) -> None:
        """Raise `ValueError` for a range that ends before it begins."""
        if self.oldest > self.newest:
            raise ValueError(f"formats from {shown(self.oldest)} to {shown(self.newest)}")

    def __contains__(self, number: int) -> bool:
        """Return whether format `number` is one of them."""
        return self.oldest <= number <= self.newest

    def __str__(self) -> str:
        """Return them in words: `1`, or `1 to 2`."""
        if self.oldest == self.newest:
            return str(self.newest)
        return f"{self.oldest} to {self.newest}"


class Formats(msgspec.Struct, frozen=True):
    """What one process reads, by kind; what is left out is the first format.

    `journal`: a worker's records. `bookings`: what replicas tell each other of requests.
    `snapshot`: an index as an object. `manifest`: which of these objects count.
    `programs`: agents in their shared table; a process that tells nothing of it reads none.
    """

    journal: FormatRange = FormatRange()
    bookings: FormatRange = FormatRange()
    snapshot: FormatRange = FormatRange()
    manifest: FormatRange = FormatRange()
    programs: FormatRange = FormatRange()

    def of(self, kind: Kind) -> FormatRange:
        """Return the formats of one kind."""
        match kind:
            case "journal":
                return self.journal
            case "bookings":
                return self.bookings
            case "snapshot":
                return self.snapshot
            case "manifest":
                return self.manifest
            case "programs":
                return self.programs
            case _:
                assert_never(kind)


FIRST: Final = Formats()
"""What a reader that was not heard yet may read, and no more."""

OWN: Final = Formats()
"""What this build reads, and can write."""


def writable(kind: Kind, readers: Iterable[Formats], own: Formats = OWN) -> int:
    """Return the highest format of `kind` that `own` writes and all `readers` read.

    The oldest that `own` writes where there is none: `unread_by` then says who does not read it.
    """
    mine = own.of(kind)
    ranges = [one.of(kind) for one in readers]
    newest = min((one.newest for one in ranges), default=mine.newest)
    oldest = max((one.oldest for one in ranges), default=mine.oldest)
    highest = min(mine.newest, newest)
    return highest if highest >= max(mine.oldest, oldest) else mine.oldest


def unread_by(kind: Kind, number: int, reads: Formats) -> str:
    """Return why a process that reads `reads` does not read format `number`; "" if it does."""
    formats = reads.of(kind)
    if number in formats:
        return ""
    return f"{kind} format {number} is not among those read, {formats}"
