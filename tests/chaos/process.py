"""One kvmesh process that can be killed, frozen and brought back on the same ports."""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvmesh.app.process.running import DIE_WITH_PARENT

_ports_rng = random.Random(os.getpid())


def fixed_ports(count: int) -> list[int]:
    """Return free ports that no outgoing connection is ever given, all different.

    A port of the system's own range may be taken by a client while its server is down.
    """
    found: list[int] = []
    while len(found) < count:
        port = _ports_rng.randrange(12_000, 32_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class MeshProcess:
    def __init__(
        self,
        name: str,
        url: str,
        arguments: Sequence[str],
        log_path: Path,
        log_format: str = "console",
        program: Sequence[str] = ("-m", "tests.fixed_flags"),
    ) -> None:
        self.name = name
        self.url = url
        self.starts = 0
        self._argv = [sys.executable, *program, *arguments]
        self._argv += ["--log-format", log_format]
        self._log_path = log_path
        # Modules are compiled once, not at every start: that is a third of it.
        self._environment = os.environ | {DIE_WITH_PARENT: "1"}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return what it ended with; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def start(self) -> None:
        """Start it unless it runs: a process that gave up (no server to join) is tried again."""
        if self.alive:
            return
        self.starts += 1
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def kill(self) -> None:
        if self._process is not None and self.alive:
            self._process.kill()
            self._process.wait()
        self._frozen = False

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        self._send(signal.SIGCONT)
        self._frozen = False

    def stop(self) -> None:
        """End it in good order, or by force after 20 s."""
        if self._process is None:
            return
        self.thaw()
        self._send(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def terminate(self) -> None:
        """Ask it to end in good order, and go on."""
        self._send(signal.SIGTERM)

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    def _send(self, number: signal.Signals) -> None:
        if self.alive:
            assert self._process is not None
            self._process.send_signal(number)
