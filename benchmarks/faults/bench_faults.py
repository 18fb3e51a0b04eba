"""Which front door hides a sick engine? Each over engines of its own, one of which gets sick.

Before each cell the door is started anew and warmed with a few good requests; the engine that got
most of them then fails every prompt (500, 429, 502, reset, cut in the middle), hangs, takes ten
times as long, or is good and bad for 2 s each. Failed is what a client did not get whole, with
status 200, within its timeout. `--fault poison`: one client's prompts end connections, what do
others see? `--fault once`: how long is an engine out that failed once?
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.faults.cells import (
    FAULTS,
    HEALTHY,
    NO_FAULT,
    QUICK_FAULTS,
    Cell,
    Fault,
    fault_table,
    judge,
    loads_for,
    summary,
    verdict_table,
)
from benchmarks.faults.doors import (
    Door,
    Fleet,
    Ports,
    Process,
    Site,
    all_doors,
    clear_environment,
    start_mocker,
    stop_all,
)
from benchmarks.faults.play import play, say
from benchmarks.faults.scenes import (
    ONCE_ENGINES,
    ONCE_KINDS,
    POISON_ENGINES,
    Back,
    Poisoned,
    Prompts,
    fail_once,
    once_table,
    open_and_play,
    poison,
    poison_table,
    too_few,
)
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.transport.http.wire.sockets import raise_open_files_limit

SCENES: Final = ("poison", "once")
NAMES: Final = (*(fault.name for fault in FAULTS), *SCENES)


class Options(msgspec.Struct, frozen=True):
    """What this benchmark can be told."""

    quick: bool
    doors: Sequence[str]
    faults: Sequence[str]
    engines: int
    json: Path | None

    def chosen_faults(self) -> list[Fault]:
        """Return the faults to play, the healthy fleet first."""
        wanted = self.faults or (QUICK_FAULTS if self.quick else [one.name for one in FAULTS])
        found = [fault for fault in FAULTS if fault.name in wanted]
        return [NO_FAULT, *found] if found else []

    def chosen_doors(self) -> list[Door]:
        """Return the doors to measure; say which are left out and why."""
        found = [
            door
            for door in all_doors()
            if not self.doors or any(part in door.name for part in self.doors)
        ]
        for door in found:
            if door.missing:
                print(f"left out: {door.name}: {door.missing}")
        return [door for door in found if not door.missing]

    def plays(self, scene: str) -> bool:
        """Return whether a scene was asked for."""
        return not self.faults or scene in self.faults


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cells: some three minutes")
    parser.add_argument("--door", action="append", default=[], help="part of a name; repeat")
    parser.add_argument("--fault", action="append", default=[], choices=NAMES, help="repeat")
    parser.add_argument("--engines", type=int, default=2, help="of each fleet; one gets sick")
    parser.add_argument("--json", type=Path, help="append one JSON line a result to this file")
    found = parser.parse_args()
    return Options(found.quick, found.door, found.fault, found.engines, found.json)


class Bench:
    """A run: what it needs, and what it found so far."""

    def __init__(self, options: Options, folder: Path, nats_url: str) -> None:
        self._options = options
        self._folder = folder
        self._nats_url = nats_url
        self._doors = options.chosen_doors()
        self._ports = Ports(os.getpid())

    async def play_faults(self) -> None:
        """Play all cells and print a table a fault, then the verdicts."""
        faults = self._options.chosen_faults()
        if not faults or not self._doors:
            return
        cells: list[Cell] = []
        with contextlib.ExitStack() as stack:
            fleets = [self._fleet(number, stack) for number in range(len(self._doors))]
            for fault in faults:
                for load in loads_for(fault, quick=self._options.quick):
                    played = await play(fleets, fault, load, len(cells) // len(fleets))
                    cells += played
                    self._dump(played)
                print(
                    f"\n### {fault.name}\n\n{fault_table(fault.name, ordered(cells, self._doors))}"
                )
        verdicts = judge(ordered(cells, self._doors), [d.name for d in self._doors if d.ours])
        self._dump(verdicts)
        if verdicts:
            show("Verdicts", f"{verdict_table(verdicts)}\n\n{summary(verdicts)}")

    async def play_poison(self) -> None:
        """Print what others see of a client whose prompts end connections."""
        kinds: list[Prompts] = ["distinct"] if self._options.quick else ["distinct", "the same"]
        lasts_s = 8.0 if self._options.quick else 15.0
        results: list[Poisoned] = []
        for kind in kinds:
            say(f"poison, {kind} prompts, {lasts_s:.0f} s")
            site = self._site(f"poison-{kind.replace(' ', '-')}")
            scene = partial(poison, kind, lasts_s)
            results += await open_and_play(self._doors, POISON_ENGINES, site, scene)
        self._dump(results)
        table = f"{poison_table(results)}\n\n{too_few(results, lasts_s)}".rstrip()
        show("poison: 6 engines, 10 good and 5 bad prompts/s", table)

    async def play_once(self) -> None:
        """Print how long an engine is out that failed once."""
        kinds = ["500"] if self._options.quick else list(ONCE_KINDS)
        waits_s = 10.0 if self._options.quick else 32.0
        results: list[Back] = []
        for number, kind in enumerate(kinds):
            say(f"once: {kind}, at most {waits_s:.0f} s")
            scene = partial(fail_once, kind, waits_s)
            site = self._site(f"once-{number}")
            results += await open_and_play(self._doors, ONCE_ENGINES, site, scene)
        self._dump(results)
        show("once: 2 engines, 7 requests/s", once_table(results, waits_s))

    def _fleet(self, number: int, stack: contextlib.ExitStack) -> Fleet:
        folder = self._folder / f"fleet{number}"
        folder.mkdir()
        urls: list[str] = []
        processes: list[Process] = []
        for engine in range(self._options.engines):
            url, process = start_mocker(self._ports.take(), folder, engine)
            urls.append(url)
            processes.append(process)
        stack.callback(stop_all, processes)
        site = Site(self._ports, 0, urls, folder, self._nats_url, f"faults{number}")
        fleet = Fleet(self._doors[number], site)
        stack.callback(fleet.end)
        return fleet

    def _site(self, name: str) -> Site:
        return Site(self._ports, 0, (), self._folder, self._nats_url, name)

    def _dump(self, results: Sequence[msgspec.Struct]) -> None:
        if self._options.json is not None:
            with self._options.json.open("ab") as file:
                file.writelines(msgspec.json.encode(one) + b"\n" for one in results)


def show(title: str, table: str) -> None:
    """Print a section of the report now, whatever follows."""
    print(f"\n### {title}\n\n{table}", flush=True)


def ordered(cells: Sequence[Cell], doors: Sequence[Door]) -> list[Cell]:
    """Return the cells in the doors' order, not in that of the turns they took."""
    names = [door.name for door in doors]
    faults = [HEALTHY, *NAMES]
    return sorted(cells, key=lambda cell: (faults.index(cell.fault), names.index(cell.door)))


async def run(options: Options) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvmesh-faults-") as name:
        server = NatsServer(Path(name) / "nats")
        bench = Bench(options, Path(name), await server.start())
        try:
            await bench.play_faults()
            if options.plays("poison"):
                await bench.play_poison()
            if options.plays("once"):
                await bench.play_once()
        finally:
            await server.stop()
    print(f"\n{time.monotonic() - began:.0f} s")


def main() -> None:
    options = parse_options()
    raise_open_files_limit()
    clear_environment()
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
