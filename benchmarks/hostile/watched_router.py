"""A kvmesh process that notes how much processor time it spends between two turns of its loop.

`python -m benchmarks.hostile.watched_router FILE router …` runs `kvmesh router …`; FILE is 8 bytes,
the most so far in seconds as a float, which whoever asks sets back to 0. The time is that of the
whole process: what a thread computes without the interpreter's lock counts too, so that it is never
too little. Unlike time on the clock it does not depend on what else the machine does.
"""

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Final

from kvmesh.app.process import running
from kvmesh.app.process.memory import give_back_memory
from kvmesh.cli import main

TICK_S: Final = 0.001
FORMAT: Final = struct.Struct("d")


async def tick(view: mmap.mmap) -> None:
    """Note the most processor time between two turns, for ever."""
    before = time.process_time()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.process_time()
        if now - before > FORMAT.unpack_from(view)[0]:
            FORMAT.pack_into(view, 0, now - before)
        before = now


def watch(file: Path) -> None:
    """Have the loop of this process ticked."""
    with file.open("r+b") as opened:
        view = mmap.mmap(opened.fileno(), FORMAT.size)

    async def with_ticks() -> None:
        await asyncio.gather(give_back_memory(), tick(view))

    # The one job of every process that serves, whatever its role.
    setattr(running, give_back_memory.__name__, with_ticks)


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
