"""`python -m benchmarks.proxy.timed_router FILE ROUTER-ARGUMENTS…`: it notes when it applied what.

FILE is mapped by both sides: a count, then for each run of blocks applied its first hash and the
time (CLOCK_MONOTONIC, ns, the same clock in every process). A note costs about 0.5 us.
"""

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

from kvmesh.cli import main
from kvmesh.core.blocks.events import Event, Stored, WorkerId
from kvmesh.core.index.index import KvIndex

COUNT: Final = struct.Struct("<Q")
NOTE: Final = struct.Struct("<8sQ")
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

    def add(self, first_hash: bytes) -> None:
        """Note that this run is applied now."""
        at = COUNT.size + self._count * NOTE.size
        NOTE.pack_into(self._map, at, first_hash, time.monotonic_ns())
        self._count += 1
        COUNT.pack_into(self._map, 0, self._count)

    def count(self) -> int:
        """Return how many runs were applied so far."""
        return int(COUNT.unpack_from(self._map)[0])

    def read(self) -> dict[bytes, int]:
        """Return when each run was applied, ns, by its first hash."""
        end = COUNT.size + self.count() * NOTE.size
        return dict(NOTE.iter_unpack(self._map[COUNT.size : end]))


def run() -> None:
    """Serve as `kvmesh router` would."""
    notes = Notes(Path(sys.argv.pop(1)), fresh=False)
    apply = KvIndex.apply

    def noting(self: KvIndex, worker: WorkerId, event: Event) -> int:
        missing = apply(self, worker, event)
        if isinstance(event, Stored):
            notes.add(event.hashes[:8])
        return missing

    setattr(KvIndex, "apply", noting)  # noqa: B010  the measured code itself stays as it is
    main()


if __name__ == "__main__":
    run()
