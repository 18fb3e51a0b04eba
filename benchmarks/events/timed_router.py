"""`python -m benchmarks.events.timed_router FILE ROUTER-ARGUMENTS…`: it notes when it applied what.

FILE is mapped by both sides: a count, then for each journal record how many blocks were stored so
far and the time (CLOCK_MONOTONIC, ns, the same clock in every process). A note costs about 0.5 us.
"""

import mmap
import struct
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvmesh.cli import main
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.replica import Folded, IndexReplica

COUNT: Final = struct.Struct("<Q")
NOTE: Final = struct.Struct("<QQ")
MAX_NOTES: Final = 1 << 18
BYTES: Final = COUNT.size + MAX_NOTES * NOTE.size


class Notes:
    """The file, from either side."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        if fresh:
            path.write_bytes(bytes(BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), BYTES)
        self._count = 0

    def add(self, stored: int) -> None:
        """Note that so many blocks are stored now."""
        at = COUNT.size + self._count * NOTE.size
        NOTE.pack_into(self._map, at, stored, time.monotonic_ns())
        self._count += 1
        COUNT.pack_into(self._map, 0, self._count)

    def stored(self) -> int:
        """Return how many blocks were stored so far."""
        count = self._noted()
        return (
            int(NOTE.unpack_from(self._map, COUNT.size + (count - 1) * NOTE.size)[0])
            if count
            else 0
        )

    def applied_ns(self, counts: Sequence[int]) -> list[int]:
        """Return when so many blocks, ascending, were stored first."""
        end = COUNT.size + self._noted() * NOTE.size
        notes = list(NOTE.iter_unpack(self._map[COUNT.size : end]))
        stored = [note[0] for note in notes]
        return [notes[bisect_left(stored, count)][1] for count in counts]

    def _noted(self) -> int:
        return int(COUNT.unpack_from(self._map)[0])


def run() -> None:
    """Serve as `kvmesh router` would."""
    notes = Notes(Path(sys.argv.pop(1)), fresh=False)
    fold = IndexReplica.fold

    def noting(
        self: IndexReplica, sequence: int, worker: WorkerId, data: bytes, now: float
    ) -> Folded:
        folded = fold(self, sequence, worker, data, now)
        notes.add(self.index.stored)
        return folded

    setattr(IndexReplica, "fold", noting)  # noqa: B010  the measured code itself stays as it is
    main()


if __name__ == "__main__":
    run()
