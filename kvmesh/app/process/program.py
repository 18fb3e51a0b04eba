"""A program of others as a child process: started, signalled, stopped, never left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Protocol

STOP_TIMEOUT_S = 5.0
POLL_S = 0.01
WATCH_S = 0.25

SHIM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this one is gone")
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
"""Asks for SIGKILL at the parent's end, then becomes the program. A `preexec_fn` would need fork(),
which threads of gRPC's library do not survive.
"""


class Server(Protocol):
    """A program that serves: what keeps it up asks no more of it."""

    async def start(self) -> str:
        """Start it, or start it anew; return its URL. Raises `KvMeshError` or `OSError`."""
        ...

    async def wait_ended(self) -> None:
        """Return when its process is gone."""
        ...


class Program:
    """One child process at a time. It dies with the thread that started it, so that a crash leaves
    no orphan. `log_path` None discards its output.
    """

    def __init__(self, log_path: Path | None = None) -> None:
        self.process: Popen[bytes] | None = None
        self._log_path = log_path

    def start(self, argv: Sequence[str]) -> None:
        """Start it. Raises `OSError` where no process can be made; a program that is not there ends
        with status 1 and says so in its log.
        """
        shim = [sys.executable, "-I", "-S", "-c", SHIM, str(os.getpid())]
        with ExitStack() as stack:
            log = stack.enter_context(self._log_path.open("ab")) if self._log_path else DEVNULL
            self.process = Popen(  # noqa: S603  argv is built from our own values
                [*shim, *argv], stdin=DEVNULL, stdout=log, stderr=log
            )

    def pid(self) -> int:
        """Return the id of the process that was started last."""
        assert self.process is not None
        return self.process.pid

    def runs(self) -> bool:
        """Return whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    async def stop(self) -> None:
        """Stop it, by force when it does not end in 5 s; safe to call twice."""
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if not await self._exited(STOP_TIMEOUT_S):
            self.kill()
        self.process = None

    async def wait_ended(self) -> None:
        """Return when the process is gone."""
        while self.runs():  # noqa: ASYNC110  nothing but poll() tells the end of a Popen
            await asyncio.sleep(WATCH_S)

    def kill(self) -> None:
        """Kill it as a power cut would; `start` may be called again."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    async def _exited(self, timeout_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.runs():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True
