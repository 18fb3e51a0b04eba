"""A mesh over real engines: an embedded nats-server, a sidecar each, two router replicas."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from kvmesh.app.ops.nats_server import NatsServer
from tests.engines.processes import Process, eventually, free_ports, kvmesh

STILL_S = 0.3
POLL_S = 0.02
GROUPS_TOLD = '"format": 2, "before": 1'
"""In a sidecar's log once it has heard that all replicas read of cache groups."""


class EngineMesh:
    """Everything but the engines. `sidecars` and `routers` can be killed and started again."""

    def __init__(self, directory: Path, engines: Mapping[str, str], options: Sequence[str]) -> None:
        self.http = httpx.Client(timeout=60.0)
        self.nats = NatsServer(directory / "nats", log_path=directory / "nats.log")
        self.router_urls: list[str] = []
        self.sidecars: dict[str, Process] = {}
        self.routers: list[Process] = []
        self._workers: Sequence[str] = ()
        self._directory = directory
        self._engines = engines
        self._options = options

    def start(self) -> None:
        asyncio.run(self.nats.start())
        nats = ("--nats-url", self.nats.url)
        for worker, url in self._engines.items():
            arguments = ("worker", "--engine-url", url, "--worker-id", worker, *nats)
            log = self._directory / f"{worker}.log"
            self.sidecars[worker] = kvmesh(*arguments, log=log)
        for number, port in enumerate(free_ports(2)):
            # Without prediction: what is compared is what the events alone have told.
            arguments = ("router", "--http-port", str(port), "--router-id", f"r{number}", *nats)
            process = kvmesh(
                *(*arguments, *self._options, "--predict-ttl-s", "0"),
                log=self._directory / f"router-{number}.log",
            )
            self.routers.append(process)
            self.router_urls.append(f"http://127.0.0.1:{port}")
        for process in (*self.routers, *self.sidecars.values()):
            process.start()

    def stop(self) -> None:
        for process in (*self.sidecars.values(), *self.routers):
            process.stop()
        asyncio.run(self.nats.stop())
        self.http.close()

    def status(self, number: int) -> dict[str, Any]:
        status: dict[str, Any] = self.http.get(f"{self.router_urls[number]}/v1/status").json()
        return status

    def wait_for_trust(self, workers: Sequence[str], *, within_s: float = 60.0) -> None:
        """Return when both replicas believe the events of all `workers`, and of no other.

        And when the sidecars tell of cache groups: since their start they had to hear of replicas.
        """
        self._workers = workers

        def trusted() -> bool:
            for process in (*self.routers, *self.sidecars.values()):
                process.check()
            if not all(map(_tells_of_groups, self.sidecars.values())):
                return False
            states = [self.status(number) for number in range(len(self.routers))]
            return all(
                {one["worker"] for one in state["workers"]} == set(workers)
                and all(one["trust"] == "exact" and one["usable"] for one in state["workers"])
                for state in states
            )

        eventually(trusted, f"{workers} are trusted", within_s=within_s)

    def wait_for_new_epoch(self, worker: str, action: Callable[[], None]) -> None:
        """Do `action`, return when both replicas trust what `worker` says since."""

        def epochs() -> list[int]:
            workers = [self.status(number)["workers"] for number in range(len(self.routers))]
            return [one["epoch"] for all_ in workers for one in all_ if one["worker"] == worker]

        before = max(epochs(), default=0)
        action()
        eventually(lambda: min(epochs(), default=0) > before, f"{worker} began anew", within_s=60.0)
        self.wait_for_trust(self._workers)

    def settle(self, *, within_s: float = 20.0) -> None:
        """Return when both replicas have read the same, and nothing new for a while."""
        deadline = time.monotonic() + within_s
        before, since = self._sequences(), time.monotonic()
        while len(set(before)) > 1 or time.monotonic() - since < STILL_S:
            assert time.monotonic() < deadline, f"never at rest: {before}"
            time.sleep(POLL_S)
            now = self._sequences()
            if now != before:
                before, since = now, time.monotonic()

    def blocks(self) -> list[dict[str, int]]:
        """Return what each replica believes each worker to hold, in blocks."""
        return [self.status(number)["mesh"]["blocks"] for number in range(len(self.routers))]

    def _sequences(self) -> list[int]:
        numbers = range(len(self.routers))
        return [self.status(number)["mesh"]["applied_sequence"] for number in numbers]


def _tells_of_groups(sidecar: Process) -> bool:
    text = sidecar.log.read_text(encoding="utf-8", errors="replace")
    return text.count(GROUPS_TOLD) >= sidecar.starts
