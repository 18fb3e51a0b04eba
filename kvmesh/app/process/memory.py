"""A process's memory: how much it may have, and giving back what a burst has left free."""

import asyncio
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvmesh.bounds import DEFAULT_MAX_BLOCKS
from kvmesh.observe import get_logger
from kvmesh.tasks import to_next

MOST_BODIES: Final = 1024**3
BODY_SHARE: Final = 4
"""A body is held once as it came, and once more while it is put together or sent on; what routing
makes of bodies besides is bounded apart from their number (`app.prompts.reading_threads`)."""

INDEX_SHARE: Final = 4
PAIR_BYTES: Final = 24
"""Measured: 18 to 24 bytes (benchmarks/fleet/bends.md)."""

LOOK_S: Final = 2.0
GROWN_BYTES: Final = 8 << 20
_ROOT: Final = Path("/")
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_MAPPED_BYTES: Final = 1 << 20
_UNLIMITED: Final = 1 << 60
"""cgroup v1 writes 2^63 less a page where nothing is set."""


def memory_limit(root: Path = _ROOT) -> int:
    """Return the bytes this process may have: its cgroup's limit (v2 or v1, of the tightest one it
    is in), else the machine's memory. `root` is where /proc and /sys are.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((physical, *_limits(root)))


def body_budget(limit: int) -> int:
    """Return the bytes of request bodies that a process may hold where `limit` is all memory: a
    quarter of it, at most 1 GiB.
    """
    return max(1, min(MOST_BODIES, limit // BODY_SHARE))


def index_bound(limit: int) -> int:
    """Return the (worker, block) pairs that an index may have where `limit` is all memory: what a
    quarter of it holds, at most `DEFAULT_MAX_BLOCKS`.
    """
    return max(1, min(DEFAULT_MAX_BLOCKS, limit // INDEX_SHARE // PAIR_BYTES))


def _limits(root: Path) -> Iterator[int]:
    """Yield every limit that is set on the cgroups of this process."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = mounts, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = mounts / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        # In a container the path may be the host's: then only the mount itself is there.
        for depth in range(len(parts) + 1):
            found = _read_limit(base.joinpath(*parts[:depth]) / name)
            if found is not None:
                yield found


def _read_limit(file: Path) -> int | None:
    try:
        bound = int(file.read_text())
    except (OSError, ValueError):
        return None  # not there, or "max"
    return bound if 0 < bound < _UNLIMITED else None


def tune_allocator() -> None:
    """Have glibc map large blocks apart, which go back when they are freed, and use few arenas.

    By itself it raises that bound to 32 MiB with the first large block that is freed, and takes
    eight arenas a core. Without glibc nothing happens.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _MAPPED_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


async def give_back_memory() -> None:
    """Return free pages to the system, for ever, each time the process has grown by 8 MiB or more.

    The walk over free blocks takes about 1 ms, in a thread and without the interpreter's lock.
    """
    libc = _glibc()
    if libc is None:
        return
    low = resident_bytes()
    while True:
        await asyncio.sleep(to_next(LOOK_S))
        low = min(low, now := resident_bytes())
        if now >= low + GROWN_BYTES:
            await asyncio.to_thread(libc.malloc_trim, 0)
            low = resident_bytes()
            get_logger().debug("memory given back", bytes=now - low)


def resident_bytes() -> int:
    """Return the process's memory in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
