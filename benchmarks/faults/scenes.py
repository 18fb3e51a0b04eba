"""Scenes of `bench_faults` on tiny engines: a client whose prompts end connections, and an engine
that fails once.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

import httpx
import msgspec

from benchmarks.faults.cells import Answer, markdown, quantile
from benchmarks.faults.doors import Door, Fleet, Site
from benchmarks.faults.engine import OneFault, TinyEngine
from benchmarks.faults.load import chat, send_at_rate

POISON_ENGINES: Final = 6
POISON_RATE: Final = 5.0
OTHERS_RATE: Final = 10.0
OTHERS_ALLOWED_PERCENT: Final = 1.0
SENT_AT_LEAST: Final = 0.95
ONCE_ENGINES: Final = 2
ONCE_RATE: Final = 7.0
BACK_ALLOWED_S: Final = 2.0
LEAVES_AFTER_S: Final = 1.0
USUAL_S: Final = 2.0
NEXT_FAULT_AFTER_S: Final = 0.5
"""So that what was under way there when the fault before came does not meet it."""
OTHERS_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.005

Prompts = Literal["distinct", "the same"]
ONCE_KINDS: Final[Mapping[str, tuple[OneFault, ...]]] = {
    "reset": ("reset",),
    "500": ("500",),
    "hang, its client leaves": ("hang",),
    "cut, then a hang whose client leaves": ("cut", "hang"),
}


class Poisoned(msgspec.Struct, frozen=True, tag="poison"):
    """What others saw while one client's prompts ended connections; `attempts` are all engines'."""

    door: str
    prompts: Prompts
    others: int
    others_failed: int
    others_p90_ms: float | None
    others_problems: Mapping[str, int]
    poison: int
    attempts: int
    poison_answers: Mapping[str, int]

    @property
    def failed_percent(self) -> float:
        """Return how many of the others' requests failed."""
        return 100 * self.others_failed / max(1, self.others)


class Back(msgspec.Struct, frozen=True, tag="once"):
    """How long an engine that failed once got nothing, s; None when the scene ended before.

    `met` is whether it was asked often enough to fail at all, `usual_s` its longest pause before.
    """

    door: str
    kind: str
    met: bool
    out_s: float | None
    usual_s: float
    failed: int
    requests: int


Result = TypeVar("Result", "Poisoned", "Back")
Scene = Callable[[Door, httpx.AsyncClient, Sequence[TinyEngine]], Awaitable[Result]]


async def open_and_play(
    doors: Sequence[Door], engines: int, site: Site, scene: Scene[Result]
) -> list[Result]:
    """Return what a scene made of each door, each with its own engines. All are open before the
    first begins; then they play at the same time.
    """
    async with contextlib.AsyncExitStack() as stack:
        own = [[TinyEngine() for _ in range(engines)] for _ in doors]
        clients = await asyncio.gather(
            *(
                _open(door, some, _place(site, number), stack)
                for number, (door, some) in enumerate(zip(doors, own, strict=True))
            )
        )
        seats = zip(doors, clients, own, strict=True)
        return list(await asyncio.gather(*(scene(*seat) for seat in seats)))


def _place(site: Site, number: int) -> Site:
    name = f"{site.namespace}-{number}"
    return site._replace(folder=site.folder / name, namespace=name)


async def _open(
    door: Door, engines: Sequence[TinyEngine], site: Site, stack: contextlib.AsyncExitStack
) -> httpx.AsyncClient:
    urls = [await engine.start() for engine in engines]
    for engine in engines:
        stack.callback(engine.stop)
    fleet = Fleet(without_events(door), site._replace(engines=urls))
    stack.callback(fleet.end)
    client = await fleet.open()
    stack.push_async_callback(client.aclose)
    return client


def without_events(door: Door) -> Door:
    """Return the door with sidecars that expect no KV events: tiny engines have none."""
    stay = door.stay
    return door._replace(stay=lambda site: [[*command, "--no-kv-events"] for command in stay(site)])


async def poison(
    prompts: Prompts,
    lasts_s: float,
    door: Door,
    client: httpx.AsyncClient,
    engines: Sequence[TinyEngine],
) -> Poisoned:
    """Send good requests at one rate and poisonous ones at another."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + lasts_s

    def is_over() -> bool:
        return loop.time() >= end_s

    def poisonous(number: int) -> dict[str, object]:
        shown = number if prompts == "distinct" else 0
        return chat(f"poison {shown}", f"POISON {shown}")

    others, own = await asyncio.gather(
        send_at_rate(client, OTHERS_RATE, _distinct, timeout_s=OTHERS_TIMEOUT_S, until=is_over),
        send_at_rate(client, POISON_RATE, poisonous, timeout_s=OTHERS_TIMEOUT_S, until=is_over),
    )
    return Poisoned(
        door=door.name,
        prompts=prompts,
        others=len(others),
        others_failed=sum(bool(one.problem) for one in others),
        others_p90_ms=quantile((one.ms for one in others if not one.problem), 0.9),
        others_problems=_problems(others),
        poison=len(own),
        attempts=sum(engine.poisoned for engine in engines),
        poison_answers=_problems(own),
    )


def _distinct(number: int) -> dict[str, object]:
    return chat(f"number {number}", f"question {number}?")


def _problems(answers: Sequence[Answer]) -> dict[str, int]:
    return dict(Counter(one.problem for one in answers if one.problem))


async def fail_once(
    kind: str,
    waits_s: float,
    door: Door,
    client: httpx.AsyncClient,
    engines: Sequence[TinyEngine],
) -> Back:
    """Let the busier engine fail and see when it is asked again. Clients leave after a second."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for engine in engines:
        engine.came_s.clear()
    sending = asyncio.create_task(
        send_at_rate(client, ONCE_RATE, _distinct, timeout_s=LEAVES_AFTER_S, until=over.is_set)
    )
    await asyncio.sleep(USUAL_S)
    engine = max(engines, key=TinyEngine.chats)
    usual_s = longest_pause(engine.came_s)
    faults = ONCE_KINDS[kind]
    deadline = loop.time() + waits_s
    for number, fault in enumerate(faults, 1):
        engine.faults.append(fault)
        await _wait(partial(engine.has_failed, number), deadline)
        if number < len(faults):
            await asyncio.sleep(NEXT_FAULT_AFTER_S)
    await _wait(lambda: time_out(engine, len(faults)) is not None, deadline)
    over.set()
    answers = await sending
    return Back(
        door=door.name,
        kind=kind,
        met=len(engine.failed_s) == len(faults),
        out_s=time_out(engine, len(faults)),
        usual_s=usual_s,
        failed=sum(bool(one.problem) for one in answers),
        requests=len(answers),
    )


async def _wait(is_so: Callable[[], bool], deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while not is_so() and loop.time() < deadline:  # noqa: ASYNC110  a list grows, no event is set
        await asyncio.sleep(POLL_S)


def longest_pause(came_s: Sequence[float]) -> float:
    """Return the longest time between two requests."""
    return max((b - a for a, b in itertools.pairwise(came_s)), default=0.0)


def time_out(engine: TinyEngine, faults: int) -> float | None:
    """Return how long after the last of its `faults` an engine was asked again; None: not yet."""
    if len(engine.failed_s) < faults:
        return None
    last_s = engine.failed_s[faults - 1]
    return next((came - last_s for came in engine.came_s if came > last_s), None)


def poison_table(results: Sequence[Poisoned]) -> str:
    """Return a row a door: what the others saw, for each kind of prompts."""
    kinds = list(dict.fromkeys(one.prompts for one in results))
    head = ["door"]
    for kind in kinds:
        head += [f"{kind} prompts: others failed", "others' p90 ms", "attempts a poison prompt"]
        head += ["the poison client got"]
    rows = [head]
    for door in dict.fromkeys(one.door for one in results):
        row = [door]
        for kind in kinds:
            for one in (one for one in results if (one.door, one.prompts) == (door, kind)):
                percent = f"{one.others_failed} of {one.others}, {one.failed_percent:.1f} %"
                missed = one.failed_percent > OTHERS_ALLOWED_PERCENT
                row += [f"**{percent}**" if missed else percent]
                row += ["-" if one.others_p90_ms is None else f"{one.others_p90_ms:,.0f}"]
                row += [f"{one.attempts / max(1, one.poison):.1f}"]
                got = sorted(one.poison_answers.items())
                row += [", ".join(f"{count} x {name}" for name, count in got) or "answers"]
        rows.append(row)
    return markdown(rows)


def too_few(results: Sequence[Poisoned], lasts_s: float) -> str:
    """Return a remark when the machine was too busy to send at the rate that was meant, else ""."""
    meant = OTHERS_RATE * lasts_s
    least = min((one.others for one in results), default=0)
    if least >= meant * SENT_AT_LEAST:
        return ""
    return (
        f"The machine stalled: only {least} of {meant:.0f} good requests were sent. Run it again."
    )


def once_table(results: Sequence[Back], waited_s: float) -> str:
    """Return a row a door: how long an engine got nothing after failing, for each kind."""
    kinds = list(dict.fromkeys(one.kind for one in results))
    rows = [["door", "its usual longest pause s", *(f"{kind}: out s (failed)" for kind in kinds)]]
    for door in dict.fromkeys(one.door for one in results):
        own = {one.kind: one for one in results if one.door == door}
        usual = max(one.usual_s for one in own.values())
        shown = [_back(own[kind], waited_s) if kind in own else "-" for kind in kinds]
        rows.append([door, f"{usual:.1f}", *shown])
    return markdown(rows)


def _back(one: Back, waited_s: float) -> str:
    if not one.met:
        return f"not asked again before its last fault in {waited_s:.0f}"
    out = f"over {waited_s:.0f}" if one.out_s is None else f"{one.out_s:.1f}"
    late = one.out_s is None or one.out_s > BACK_ALLOWED_S
    return f"{'**' + out + '**' if late else out} ({one.failed})"
