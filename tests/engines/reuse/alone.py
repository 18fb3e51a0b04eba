"""A router alone, without NATS, over the engines of a mesh: it reads their events itself."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.engines.mesh import POLL_S, STILL_S
from tests.engines.processes import Process, eventually, free_ports, kvmesh


class RouterAlone:
    """One process; can be killed and started again."""

    def __init__(self, directory: Path, engines: Mapping[str, str], options: Sequence[str]) -> None:
        self.http = httpx.Client(timeout=60.0)
        [port] = free_ports(1)
        self.front_url = f"http://127.0.0.1:{port}"
        self.router_urls = [self.front_url]
        self._engines = len(engines)
        urls = [word for url in engines.values() for word in ("--worker", url)]
        arguments = ("router", "--http-port", str(port), "--router-id", "alone", *urls)
        self.process: Process = kvmesh(*arguments, *options, log=directory / "alone.log")

    def start(self) -> None:
        self.process.start()

    def stop(self) -> None:
        self.process.stop()
        self.http.close()

    def wait_for_trust(self, *, within_s: float = 60.0) -> None:
        """Return when it believes the events of all engines."""

        def trusted() -> bool:
            self.process.check()
            workers = self._status()["workers"]
            exact = [one["trust"] == "exact" and one["usable"] for one in workers]
            return len(exact) == self._engines and all(exact)

        eventually(trusted, "the router alone trusts all", within_s=within_s)

    def settle(self, *, within_s: float = 20.0) -> None:
        """Return when it has read nothing new for a while."""
        deadline = time.monotonic() + within_s
        before, since = self._batches(), time.monotonic()
        while time.monotonic() - since < STILL_S:
            assert time.monotonic() < deadline, f"never at rest: {before}"
            time.sleep(POLL_S)
            now = self._batches()
            if now != before:
                before, since = now, time.monotonic()

    def _batches(self) -> Sequence[int]:
        engines = self._status()["mesh"]["engines"]
        return [one["events"]["last_seq"] for ranks in engines.values() for one in ranks.values()]

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.http.get(f"{self.router_urls[0]}/v1/status").json()
        return status
