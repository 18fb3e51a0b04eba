"""A search for weights in a process of its own: `kvmesh propose`, of the lowest priority."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.app.process.running import DIE_WITH_PARENT
from kvmesh.bounds import UNREADABLE
from kvmesh.core.insight.trace_ring import mooncake_lines
from kvmesh.core.insight.tuning_loop import Search
from kvmesh.core.insight.weight_search import Found
from kvmesh.errors import TransportError

GRACE: Final = 3.0
"""It is killed after so many times the seconds it was given: it ends its last play, too."""

LEAST_S: Final = 20.0
ROWS_A_TURN: Final = 64
LAST_WORDS: Final = 300
COMMAND: Final = ("-m", "kvmesh", "propose")

_decoder = msgspec.json.Decoder(Found)


class SearchChild:
    """At most one search at a time, never on the event loop."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._process: Process | None = None

    async def run(self, search: Search) -> Found:
        """Return what was found. Raises `TransportError` that says why nothing was."""
        if self._process is not None:
            raise TransportError("the search before has not ended")
        longest_s = max(LEAST_S, GRACE * search.task.seconds)
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=os.environ | {DIE_WITH_PARENT: "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise TransportError(f"no process for it: {error}") from error
        try:
            async with asyncio.timeout(longest_s):
                feeding = self._feed(process, search)
                _, (out, said) = await asyncio.gather(feeding, _read(process))
                code = await process.wait()
        except TimeoutError as error:
            raise TransportError(f"it took more than {longest_s:.0f} s") from error
        finally:
            self._process = None
            await _end(process)
        if code:
            words = said.decode(errors="replace").strip()[-LAST_WORDS:]
            raise TransportError(f"it ended with code {code}: {words or 'no word'}")
        try:
            return _decoder.decode(out)
        except UNREADABLE as error:
            raise TransportError(f"its answer cannot be read: {error}") from error

    def kill(self) -> None:
        """End the search under way; no error when there is none."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _feed(self, process: Process, search: Search) -> None:
        """Write the task and its trace, a few rows a turn of the loop."""
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(search.task) + b"\n")
            lines = mooncake_lines(search.rows, search.task.block_tokens)
            for number, line in enumerate(lines):
                process.stdin.write(line)
                if number % ROWS_A_TURN == 0:
                    await process.stdin.drain()
                    await asyncio.sleep(0)
            await process.stdin.drain()
        process.stdin.close()


async def _read(process: Process) -> tuple[bytes, bytes]:
    assert process.stdout is not None
    assert process.stderr is not None
    out, said = await asyncio.gather(process.stdout.read(), process.stderr.read())
    return out, said


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
