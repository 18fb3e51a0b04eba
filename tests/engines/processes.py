"""Child processes of a test: started with their output in a file, killed with all they started."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def free_ports(count: int) -> list[int]:
    """Return ports nobody listens on, nor on the next: a second rank takes that."""
    ports: list[int] = []
    rng = random.SystemRandom()
    while len(ports) < count:
        # Below those the kernel gives to clients.
        port = rng.randrange(20_000, 32_000, 10)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            if port not in ports:
                ports.append(port)
    return ports


def eventually(check: Callable[[], object], what: str, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(httpx.TransportError):
            if check():
                return
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)


class Process:
    """One program in a process group of its own; `start` begins it again after an end."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.starts = 0
        self._argv = list(argv)
        self._environment = os.environ | dict(environment)
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - tests start from one thread
            )

    @property
    def pid(self) -> int:
        """Return the process, which leads its group."""
        assert self._popen is not None
        return self._popen.pid

    def check(self) -> None:
        """Fail with the end of the output when the program ended by itself."""
        assert self._popen is not None
        code = self._popen.poll()
        text = self.log.read_text(encoding="utf-8", errors="replace")
        assert code is None, f"{self._argv[2:4]} ended with {code}:\n{text[-3000:]}"

    def kill(self) -> None:
        """End it and its children as a power cut would."""
        self._signal(signal.SIGKILL)

    def stop(self, grace_s: float = 15.0) -> None:
        """Ask it to end, insist after `grace_s`; safe to call twice."""
        if self._popen is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout=grace_s)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)
        self._popen.wait(timeout=10)


def kvmesh(*arguments: str, log: Path) -> Process:
    """Return a kvmesh command as a process; its constants are flags, too."""
    return Process([sys.executable, "-m", "tests.fixed_flags", *arguments], log, {})


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
