"""`kvmesh` processes as an operator runs them."""

import asyncio
import contextlib
import sys
from pathlib import Path


class Process:
    """One `kvmesh` process whose log is read until a line shows it works."""

    def __init__(self, stack: contextlib.AsyncExitStack, folder: Path, *words: str) -> None:
        self.words = words
        self.log = folder / f"{words[0]}.log"
        self._stack = stack

    async def start(self) -> None:
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kvmesh", *self.words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        async def stop() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), 60)

        self._stack.push_async_callback(stop)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def url(self) -> str:
        for line in self.text().splitlines():
            if ' serves"' in line:
                return line.split('"url": "')[1].split('"')[0]
        return ""
