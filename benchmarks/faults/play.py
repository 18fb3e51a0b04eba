"""Plays the cells of `bench_faults`: each door over pretend engines, one of which gets sick."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import httpx
import msgspec

from benchmarks.faults.cells import NO_FAULT, Cell, Fault, Load, head_start_s, make_cell
from benchmarks.faults.doors import Fleet
from benchmarks.faults.load import chat, send

WARM_UP: Final = Load("warm-up", 8, 2)
LOOK: Final = Load("look", 4, 1)
FIRST_NUMBER: Final = 10
"""So that all questions have the same length."""
BEGAN_S: Final = time.monotonic()


def say(text: str) -> None:
    """Tell how far it is, apart from the tables."""
    print(f"{time.monotonic() - BEGAN_S:5.0f} s  {text}", file=sys.stderr, flush=True)


class Counts(msgspec.Struct, frozen=True):
    """Generation requests an engine got, and those of them that met a fault, by its name."""

    requests: int
    met: Mapping[str, int]


class Engines:
    """Pretend engines whose faults are set over HTTP."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._http = httpx.AsyncClient(trust_env=False, timeout=10)

    async def tell(self, number: int, fault: Fault = NO_FAULT) -> None:
        """Set an engine's faults, none by default; its count of requests begins anew."""
        body = {
            "fail": fault.fail,
            "flap": fault.flap,
            "slowdown": fault.slowdown,
            "first_pause_s": fault.first_pause_s,
        }
        response = await self._http.post(f"{self._urls[number]}/kvmesh/faults", json=body)
        response.raise_for_status()

    async def heal(self) -> None:
        """Make all of them well."""
        await self.tell_all(NO_FAULT)

    async def tell_all(self, fault: Fault) -> None:
        """Set the faults of all engines."""
        await asyncio.gather(*(self.tell(number, fault) for number in range(len(self._urls))))

    async def counts(self) -> list[Counts]:
        """Return what each got since it was told something."""
        urls = [f"{url}/kvmesh/faults" for url in self._urls]
        pages = await asyncio.gather(*(self._http.get(url) for url in urls))
        return [msgspec.json.decode(page.content, type=Counts) for page in pages]

    async def close(self) -> None:
        await self._http.aclose()


class Seat:
    """A fleet whose door is open, warm and about to be measured; engine `sick` will get sick."""

    def __init__(self, fleet: Fleet, client: httpx.AsyncClient, engines: Engines) -> None:
        self.fleet = fleet
        self.client = client
        self.engines = engines
        self.sick = 0

    async def warm(self, topic: str) -> None:
        """Send a few good requests. The engine that gets most of the last ones is the one to get
        sick: it holds the prefix that all share, and would be chosen for the next like them.

        Raises `RuntimeError` when one fails.
        """
        await self.engines.heal()
        answers = await send(self.client, WARM_UP, lambda n: chat(topic, f"warm-up {n}"))
        await self.engines.heal()
        answers += await send(self.client, LOOK, partial(_question, topic, False))
        problems = sorted({one.problem for one in answers if one.problem})
        if problems:
            raise RuntimeError(f"{self.fleet.door.name}: warm-up failed: {', '.join(problems)}")
        got = [one.requests for one in await self.engines.counts()]
        self.sick = got.index(max(got))

    async def measure(self, fault: Fault, load: Load, topic: str, *, after_s: float = 0.0) -> Cell:
        """Make the engine sick, send the load, make it well again."""
        await asyncio.sleep(after_s)
        if fault.fail:
            await self.engines.tell(self.sick, fault)
        else:
            await self.engines.tell_all(fault)
        make = partial(_question, topic, load.stream)
        answers = await send(
            self.client,
            load,
            lambda number: make(LOOK.requests + number, tokens=load.tokens(number)),
        )
        attempts = sum((await self.engines.counts())[self.sick].met.values())
        await self.engines.heal()
        return make_cell(self.fleet.door.name, fault.name, load.name, answers, attempts)


def _question(
    topic: str, stream: bool, number: int, *, tokens: int | None = None
) -> dict[str, object]:
    return chat(topic, f"question {FIRST_NUMBER + number}?", stream=stream, tokens=tokens)


async def play(fleets: Sequence[Fleet], fault: Fault, load: Load, turn: int) -> list[Cell]:
    """Return the cells of one fault and load, the doors in turns beginning with number `turn`.

    Each door is opened anew. Where the cells mostly wait, the doors are measured side by side.
    """
    start = turn % len(fleets)
    order = [*fleets[start:], *fleets[:start]]
    topic = f"{turn} {fault.name} {load.name}"
    async with contextlib.AsyncExitStack() as stack:
        seats = await asyncio.gather(*(_seat(fleet, stack) for fleet in order))
        await asyncio.gather(*(seat.warm(topic) for seat in seats))
        if fault.waits:
            starts = [head_start_s(place, len(seats), load) for place in range(len(seats))]
            cells = await asyncio.gather(
                *(
                    seat.measure(fault, load, topic, after_s=after_s)
                    for seat, after_s in zip(seats, starts, strict=True)
                )
            )
        else:
            cells = [await seat.measure(fault, load, topic) for seat in seats]
    for cell in cells:
        say(
            f"{cell.fault}, {cell.load}, {cell.door}: {cell.failed} of {cell.requests} failed, "
            f"{cell.attempts} at the sick engine, p90 {cell.p90_ms or 0:.0f} ms"
        )
    return list(cells)


async def _seat(fleet: Fleet, stack: contextlib.AsyncExitStack) -> Seat:
    stack.callback(fleet.close)
    client = await fleet.open()
    stack.push_async_callback(client.aclose)
    engines = Engines(fleet.engines)
    stack.push_async_callback(engines.close)
    return Seat(fleet, client, engines)
