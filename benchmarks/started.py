"""A process of the mesh that is started, asked whether it is ready, and killed."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import cpu_ns
from kvmesh.app.process.running import DIE_WITH_PARENT

POLL_S: Final = 0.002
START_S: Final = 60.0


def as_installed() -> dict[str, str]:
    """Return an environment in which modules are compiled once, not at every start."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Started:
    """`python -m ARGUMENTS` on `port`; its output goes to `log_path`, its bytecode is cached.

    Modules are those of the checkout `tree`, without one of this.
    """

    def __init__(
        self, arguments: Sequence[str], port: int, log_path: Path, tree: Path | None = None
    ) -> None:
        self.port = port
        self._log_path = log_path
        with log_path.open("wb") as log:
            self.started_s = time.time()
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=as_installed() | {DIE_WITH_PARENT: "1"},
                cwd=tree,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, ready: Callable[["Started"], bool]) -> float:
        """Return the seconds from start until `ready` first says so."""
        while time.time() < self.started_s + START_S:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                if ready(self):
                    return time.time() - self.started_s
            time.sleep(POLL_S)
        raise TimeoutError(f"not ready in {START_S:.0f} s:\n{self.log()[-2000:]}")

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer's JSON, whatever its status."""
        return json.loads(self.fetch(path, body))

    def fetch(self, path: str, body: object = None) -> bytes:
        """Return the answer's body; POST `body` as JSON if there is one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        with contextlib.closing(connection):
            sent = None if body is None else json.dumps(body).encode()
            headers = {"content-type": "application/json"}
            connection.request("GET" if body is None else "POST", path, sent, headers)
            return connection.getresponse().read()

    def log(self) -> str:
        """Return all it wrote so far."""
        return self._log_path.read_text()

    def logged_s(self, event: str) -> float:
        """Return when a kvmesh process wrote the first line of that event, s after its start."""
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") == event:
                    at = datetime.fromisoformat(entry["timestamp"]).timestamp()
                    return at - self.started_s
        raise AssertionError(f"no line {event!r} in\n{self.log()}")

    def cpu_s(self) -> float:
        """Return its processor time so far, s: what a loaded machine changes least."""
        return cpu_ns(self._process.pid) / 1e9

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
