"""Answers through a real Envoy while its pickers are killed, each compared to the last byte.

`python -m tests.integration.gateway.storm --answers 100000 --every 10` runs it by hand.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from kvmesh.app.picker.envoy_options import Address, BodyMode, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.app.process.running import DIE_WITH_PARENT
from tests.integration.gateway.answers import Tally, load
from tests.integration.gateway.endpoints import Endpoint
from tests.integration.support.live_router import free_port

ENDPOINTS = 3
PICKERS = 2
READY_S = 60.0
OK = 200
TLS = Path(__file__).parents[2] / "fixtures/tls"


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What happens: `answers` in all, `clients` at a time, a picker killed every `every_s`, or as
    soon as the other serves again. Envoy shows bodies in these modes, and fails so; the defaults
    are those of `unharmed`.
    """

    answers: int
    clients: int = 24
    every_s: float = 10.0
    request_body: BodyMode = "BUFFERED"
    response_body: BodyMode = "STREAMED"
    fail_open: bool = True
    tls: bool = False


class Pickers:
    """Processes of `kvmesh picker` over the same endpoints, killed and started anew in turn."""

    def __init__(self, folder: Path, workers: Sequence[str], *, tls: bool = False) -> None:
        self.addresses = [Address("127.0.0.1", free_port()) for _ in range(PICKERS)]
        self.kills = 0
        self._folder = folder
        self._words = [word for worker in workers for word in ("--worker", f"http://{worker}")]
        if tls:
            self._words += ["--grpc-tls-cert", str(TLS / "cert.pem")]
            self._words += ["--grpc-tls-key", str(TLS / "key.pem")]
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._running = [self._start(number) for number in range(PICKERS)]

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    async def kill_in_turn(self, every_s: float, server: EnvoyServer) -> None:
        """Kill one after the other, as kill -9 does, for ever; never the only one that serves."""
        for number in itertools.cycle(range(PICKERS)):
            await asyncio.sleep(every_s)
            await all_healthy(server)
            self._running[number].kill()
            self._running[number].wait()
            self.kills += 1
            self._running[number] = self._start(number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "kvmesh", "picker", "--no-kv-events", *self._words]
        argv += ["--grpc-port", str(self.addresses[number].port), "--http-port", "0"]
        with (self._folder / f"picker-{number}.log").open("ab") as log:
            argv += ["--log-level", "warning"]
            ends = os.environ | {DIE_WITH_PARENT: "1"}
            return subprocess.Popen(argv, stdout=log, stderr=log, env=ends)


async def run(folder: Path, storm: Storm) -> tuple[Tally, int]:
    """Return how the answers ended, and how many pickers were killed."""
    async with contextlib.AsyncExitStack() as stack:
        endpoints = [Endpoint() for _ in range(ENDPOINTS)]
        for endpoint in endpoints:
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
        known = tuple(endpoint.address for endpoint in endpoints)
        pickers = Pickers(folder, [str(address) for address in known], tls=storm.tls)
        stack.callback(pickers.stop)
        pickers.start()
        options = GatewayOptions(
            pickers=tuple(pickers.addresses),
            endpoints=known,
            access_log=folder / "access.log",
            request_body=storm.request_body,
            response_body=storm.response_body,
            fail_open=storm.fail_open,
            picker_ca=TLS / "cert.pem" if storm.tls else None,
        )
        server = EnvoyServer(options, folder / "envoy")
        stack.push_async_callback(server.stop)
        await server.start()
        await all_healthy(server)
        for endpoint in endpoints:
            endpoint.seen.clear()
        killing = asyncio.create_task(pickers.kill_in_turn(storm.every_s, server))
        stack.callback(killing.cancel)
        tally = Tally()
        await load(server.address, range(storm.answers), storm.clients, tally)
        if killing.done():
            killing.result()
        return tally, pickers.kills


def reasons(access_log: Path) -> Counter[tuple[int, str]]:
    """Return what Envoy says of the answers that were not 200, or were cut."""
    lines = (msgspec.json.decode(line) for line in access_log.read_bytes().splitlines())
    return Counter(
        (line["status"], f"{line['flags']} {line['details']}")
        for line in lines
        if line["status"] != OK or line["flags"] not in {None, "-"}
    )


async def all_healthy(server: EnvoyServer) -> None:
    name = "cluster.pickers.membership_healthy"
    async with asyncio.timeout(READY_S):
        while (await server.counters(name))[name] < PICKERS:  # noqa: ASYNC110  Envoy tells nobody
            await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    parser.add_argument("--request", choices=get_args(BodyMode), default="BUFFERED")
    parser.add_argument("--response", choices=get_args(BodyMode), default="STREAMED")
    parser.add_argument("--fail-close", action="store_true")
    found = parser.parse_args()
    storm = Storm(
        answers=found.answers,
        clients=found.clients,
        every_s=found.every,
        request_body=found.request,
        response_body=found.response,
        fail_open=not found.fail_close,
    )
    with tempfile.TemporaryDirectory(prefix="kvmesh-storm-") as folder:
        began = time.monotonic()
        tally, kills = asyncio.run(run(Path(folder), storm))
        print(f"{kills} kills in {time.monotonic() - began:.0f} s; {tally}")  # noqa: T201
        for (status, why), count in reasons(Path(folder) / "access.log").most_common(10):
            print(f"{count:6} x {status} {why}")  # noqa: T201


if __name__ == "__main__":
    main()
