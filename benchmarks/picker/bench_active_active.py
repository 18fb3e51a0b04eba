"""Three pickers over the same engines: what each knows of the others, and one of them killed.

Real processes; a gateway is gRPC's own library, which sends the requests itself. `mesh`: a bucket
on NATS. `envoy`: the same, asked by a real Envoy (bodies streamed both ways). `events`: each alone,
following the engines' events by itself. `own picks`: each alone, knowing only what it picked.
Conversations of 220 blocks, their turns at other pickers each time.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.errors import KvMeshError
from tests.chaos.process import fixed_ports
from tests.integration.picker.asking import chat
from tests.integration.picker.conversations import Asker, AtPicker, Crowd, Load, ThroughGateway
from tests.integration.picker.fleet import PickerFleet, running
from tests.integration.support.waiting import until

PICKERS: Final = 3
ENGINES: Final = 3
APART_S: Final = 0.02
KINDS: Final = ("mesh", "envoy", "events", "own picks")
SETTLED_S: Final = 1.0
"""By then events of the last answers have come, and heartbeats told of everything else."""


HEAD: Final = """\
| three pickers | next turn at another picker: kept | busiest worker | one killed: others kept\
 | their requests broken | restarted: ready after | its first picks: kept |
|---|---|---|---|---|---|---|"""


class Seen(msgspec.Struct, frozen=True):
    """One run. Shares are of conversations whose next turn went to the worker of the last one.

    `busiest` is the mean share that the busiest of three workers got of three requests, one at each
    picker and 20 ms behind the one before.
    `broken` and `answered` count requests of the load at the others; through Envoy, of all of it.
    """

    kind: str
    kept: float
    busiest: float
    kept_at_once: float
    broken: int
    answered: int
    ready_s: float
    kept_by_restarted: float


@contextlib.asynccontextmanager
async def fleet_of(kind: str, folder: Path) -> AsyncIterator[PickerFleet]:
    """Run a fleet of that kind."""
    server: NatsServer | None = None
    if kind in ("mesh", "envoy"):
        server = NatsServer(folder / "nats", port=fixed_ports(1)[0], log_path=folder / "nats.log")
        await server.start()
    fleet = PickerFleet(folder, server, "bench", engines=ENGINES)
    options: list[str] = []
    if server is None:
        options = [word for one in fleet.engines() for word in ("--worker", one)]
        options += ["--no-kv-events"] if kind == "own picks" else []
    for _ in range(PICKERS):
        fleet.add_picker(*options)
    try:
        async with running(fleet):
            yield fleet
    finally:
        if server is not None:
            await server.stop()


async def burst(askers: Sequence[Asker], number: int) -> float:
    """Send a long request by each, apart; return the busiest worker's share."""
    went: Counter[str] = Counter()

    async def one(at: int, ask: Asker) -> None:
        await asyncio.sleep(at * APART_S)
        body = chat(f"burst {number}, request {at} of it: " * 40, tokens=40)
        went[(await ask(body, {}))["x-kvmesh-worker"]] += 1

    await asyncio.gather(*(one(at, ask) for at, ask in enumerate(askers)))
    return max(went.values()) / len(askers)


@contextlib.asynccontextmanager
async def asked(kind: str, fleet: PickerFleet, folder: Path) -> AsyncIterator[list[Asker]]:
    """Yield who asks each picker; `envoy`: a real one, which chooses among them."""
    if kind != "envoy":
        yield [AtPicker(fleet, one) for one in fleet.pickers]
        return
    pickers = tuple(address_of(one.address) for one in fleet.pickers)
    endpoints = tuple(address_of(one) for one in fleet.workers)
    server = EnvoyServer(GatewayOptions(pickers=pickers, endpoints=endpoints), folder / "envoy")
    await server.start()
    try:
        yield [ThroughGateway(server.url, fleet.client) for _ in pickers]
    finally:
        await server.stop()


def address_of(text: str) -> Address:
    host, _, port = text.partition(":")
    return Address(host, int(port))


async def measure(kind: str, conversations: int, bursts: int) -> Seen:
    """Play the whole story once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with fleet_of(kind, folder) as fleet, asked(kind, fleet, folder) as askers:
            crowd = Crowd(fleet, conversations)
            await crowd.go_on(askers)
            await asyncio.sleep(SETTLED_S)
            kept = await crowd.go_on([*askers[1:], askers[0]])
            await asyncio.sleep(SETTLED_S)
            shares = [await burst(askers, number) for number in range(bursts)]
            loads = [Load(one, 2) for one in askers]
            await until(lambda: asyncio.sleep(0, all(one.answered >= 8 for one in loads)))
            fleet.pickers[0].process.kill()
            at_once = await crowd.go_on([askers[2], askers[1]])
            for one in loads:
                await one.end()
            began_s = time.monotonic()
            fleet.pickers[0].process.start()
            await fleet.until_answers(fleet.pickers[0].process)
            ready_s = time.monotonic() - began_s
            again = askers if kind == "envoy" else [AtPicker(fleet, fleet.pickers[0])]
            restarted = await crowd.go_on(again)
            others = loads if kind == "envoy" else loads[1:]
            return Seen(
                kind=kind,
                kept=kept,
                busiest=sum(shares) / len(shares),
                kept_at_once=at_once,
                broken=sum(len(one.broken) for one in others),
                answered=sum(one.answered for one in others),
                ready_s=ready_s,
                kept_by_restarted=restarted,
            )


def render(rows: Sequence[Seen]) -> str:
    """Return the table of the documentation."""
    lines = [
        f"| {one.kind} | {one.kept:.3f} | {one.busiest:.2f} | {one.kept_at_once:.3f} |"
        f" {one.broken} of {one.answered + one.broken} |"
        f" {one.ready_s:.1f} s | {one.kept_by_restarted:.3f} |"
        for one in rows
    ]
    return "\n".join([HEAD, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--only", choices=KINDS, nargs="*", default=KINDS)
    options = parser.parse_args()
    try:
        rows = [
            asyncio.run(measure(kind, options.conversations, options.bursts))
            for kind in options.only
        ]
    except KvMeshError as error:
        sys.exit(str(error))
    sys.stdout.write(render(rows) + "\n")


if __name__ == "__main__":
    main()
