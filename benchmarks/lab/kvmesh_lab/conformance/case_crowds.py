"""Many calls at once on one connection: none may stop, mix up or outlive the others."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.bodies import cut, first_difference, noise
from kvmesh_lab.conformance.case import (
    EXT_PROC,
    HTTP,
    HTTP2,
    PROTOCOL,
    Broken,
    Case,
    NotTried,
    Rule,
    holds,
)
from kvmesh_lab.conformance.exchange import (
    Answered,
    Received,
    answer,
    ask,
    describe,
    picked,
    rest_of,
    same_body,
)
from kvmesh_lab.conformance.link import Call
from kvmesh_lab.conformance.wire import Refusal

CALLS: Final = 40
OTHERS: Final = 8
OPEN: Final = 100
STALLED_BYTES: Final = 3_000_000
MOST_HELD: Final = 16_000_000
"""Bytes of one stream that a picker may take while nothing of it is read."""

QUIET_S: Final = 0.4
"""A stream that took nothing for so long takes no more."""

BUSY: Final = frozenset({429, 503})


async def interleaved(bench: Bench) -> str:
    """Send headers of 40 chats, then their bodies, the last chat's first, in one connection."""
    async with AsyncExitStack() as stack:
        calls: list[tuple[Call, bytes, Received]] = []
        for seed in range(CALLS):
            asked = bench.asks(2000 + 311 * seed, seed=seed)
            call = await stack.enter_async_context(bench.link.call())
            await call.send(asked.messages()[0])
            calls.append((call, asked.body, Received("request")))
        for call, body, _ in reversed(calls):
            await call.send(*_rest(body))
        for call, body, received in calls:
            while not received.is_done(whole=False):
                received.take(await call.receive("the pick"))
            bench.in_pool(picked(received))
            same_body(body, received)
    return f"{CALLS} calls"


def _rest(body: bytes) -> list[bytes]:
    return rest_of("request", body, (), 700)


async def half_a_body(bench: Bench) -> str:
    """Leave a call in the middle of its body; others on the connection must be picked."""
    asked = bench.asks(5000, seed=50)
    async with bench.link.call() as slow:
        await slow.send(asked.messages()[0], *_rest(asked.body)[:3])
        await _others_are_picked(bench, "a call waits in the middle of its body")
        await slow.send(*_rest(asked.body)[3:])
        received = Received("request")
        while not received.is_done(whole=False):
            received.take(await slow.receive("the pick"))
        picked(received)
        same_body(asked.body, received)
    return f"{OTHERS} others"


async def nobody_reads(bench: Bench) -> str:
    """Read nothing of a call whose answer has 3 MB; others must be picked, and it stays whole."""
    pieces = cut(noise(STALLED_BYTES, seed=51))
    async with bench.asked(bench.asks(seed=51)) as (slow, received):
        picked(received)
        slow.pause_reading()
        answering = asyncio.create_task(answer(slow, Answered(pieces=pieces)))
        try:
            await _others_are_picked(bench, "a call's answer is not read", alive=answering)
            slow.resume_reading()
            back = await answering
        finally:
            answering.cancel()
        sent = b"".join(pieces)
        holds(back.body == sent, f"the answer was damaged: {first_difference(sent, back.body)}")
    return f"{OTHERS} others, on the same connection"


async def memory_is_bounded(bench: Bench) -> str:
    """Read nothing of a call, and send it an answer until it takes no more."""
    pieces = cut(noise(1_000_000, seed=52)) * (2 * MOST_HELD // 1_000_000)
    async with bench.asked(bench.asks(seed=52)) as (slow, received):
        picked(received)
        slow.pause_reading()
        messages = Answered(pieces=pieces).rest()
        await slow.send(Answered(pieces=pieces).first())
        taken = 0
        for piece, message in zip(pieces, messages, strict=True):
            try:
                await asyncio.wait_for(slow.send(message), QUIET_S)
            except TimeoutError:
                return f"it took {taken / 1e6:.1f} MB"
            holds(slow.ended is None, f"the picker ended the call: {describe(slow.ended)}")
            taken += len(piece)
            holds(
                taken <= MOST_HELD,
                f"{taken / 1e6:.0f} MB were taken of a call of which nothing is read",
            )
    return ""


async def clients_go(bench: Bench) -> str:
    """Reset calls after the headers, in the body, after the pick, in the answer."""
    pieces = cut(noise(20_000), 1000)
    for seed in range(5):
        asked = bench.asks(5000, seed=seed)
        for count in (1, 3):
            async with bench.link.call() as call:
                await call.send(*asked.messages()[:1], *_rest(asked.body)[: count - 1])
        for count in (0, 1, 5):
            async with bench.asked(asked) as (call, received):
                picked(received)
                sent = Answered(pieces=pieces)
                await call.send(*[sent.first(), *sent.rest()][:count])
    await bench.pick(bench.asks(seed=60))
    await bench.still_picks("25 clients that went")
    return "25 calls"


async def connection_goes(bench: Bench) -> str:
    """Close a connection with calls in all phases; the picker must go on."""
    link = bench.target.connect()
    async with AsyncExitStack() as stack:
        for seed in range(6):
            call = await stack.enter_async_context(link.call())
            asked = bench.asks(3000, seed=seed)
            if seed % 2:
                await ask(call, asked)
            else:
                await call.send(*asked.messages()[:1])
        await link.close()
    await bench.still_picks("a connection that went with 6 calls")
    return ""


async def many_connections(bench: Bench) -> str:
    """Ask on 16 connections at once."""
    links = [bench.target.connect() for _ in range(16)]
    try:
        await _all(bench.pick(bench.asks(seed=seed), link) for seed, link in enumerate(links))
    finally:
        for link in links:
            await link.close()
    return ""


async def crowded(bench: Bench) -> str:
    """Hold 100 requests open at once; each is picked, or refused in the protocol's way."""
    refused: list[Refusal] = []
    answered = asyncio.Barrier(OPEN)

    async def one(seed: int) -> None:
        async with bench.asked(bench.asks(seed=seed)) as (_, received):
            if received.refusal is None:
                bench.in_pool(picked(received))
            else:
                refused.append(received.refusal)
            await answered.wait()

    try:
        async with asyncio.TaskGroup() as group:
            for seed in range(OPEN):
                group.create_task(one(seed))
    except* Broken as several:
        raise Broken(f"of {OPEN} requests, {_first(several)}") from several
    bench.refusals = refused
    for one_refused in refused:
        holds(
            one_refused.status in BUSY,
            f"a request was refused with {one_refused.status}, not 429 or 503",
        )
    if not refused:
        return "none was refused"
    return f"{len(refused)} refused: {sorted({one.status for one in refused})}"


async def told_when_to_retry(bench: Bench) -> str:
    """Look at what `crowded` was refused with."""
    if not bench.refusals:
        raise NotTried(
            "crowd-open was refused nothing: a picker that is set to take few requests shows it"
        )
    for refusal in bench.refusals:
        when = [one.value for one in refusal.headers if one.name == "retry-after"]
        holds(when, f"a refusal has no retry-after: {describe(refusal)}")
        holds(when[-1].isdigit(), f"retry-after is {when[-1]!r}, no seconds")
    return ""


def _first(several: BaseExceptionGroup[Broken]) -> str:
    """Return what the first of several calls broke."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"one says: {error}"


async def _others_are_picked(
    bench: Bench, meanwhile: str, alive: asyncio.Task[Received] | None = None
) -> None:
    try:
        await _all(bench.pick(bench.asks(900, seed=70 + number)) for number in range(OTHERS))
    except Broken as error:
        raise Broken(f"while {meanwhile}, another on its connection: {error}") from error
    if alive is not None and alive.done():
        await alive


async def _all(picks: Iterable[Coroutine[object, object, object]]) -> None:
    await asyncio.gather(*picks)


_APART = Rule(
    "Each HTTP request has a call of its own; calls share connections.",
    EXT_PROC,
)
_FLOW = Rule(
    "Flow control lets streams of a connection advance independently of one that stalls.", HTTP2
)

CASES: Final = (
    Case("crowd-interleaved", "must", f"{CALLS} chats, bodies in turns", _APART, interleaved),
    Case("stall-in-body", "must", "half a body, then silence", _FLOW, half_a_body),
    Case("stall-in-answer", "must", "3 MB of an answer that nobody reads", _FLOW, nobody_reads),
    Case(
        "stall-bounded",
        "should",
        "an answer without end that nobody reads",
        Rule("Flow control protects a receiver that has limited memory.", HTTP2),
        memory_is_bounded,
    ),
    Case("gone-clients", "must", "25 calls reset in all phases", _APART, clients_go),
    Case("gone-connection", "must", "a connection lost with 6 calls", _APART, connection_goes),
    Case("crowd-connections", "must", "16 connections", _APART, many_connections),
    Case(
        "crowd-open",
        "must",
        f"{OPEN} requests open at once",
        Rule(
            "A request that gets no endpoint is refused by an ImmediateResponse: 429 where it is "
            "dropped for load, 503 where no endpoint is ready.",
            f"{PROTOCOL}#destination-endpoint",
        ),
        crowded,
    ),
    Case(
        "crowd-retry-after",
        "should",
        "what crowd-open was refused with",
        Rule(
            "A refusal for load may say in retry-after when to come back, in seconds or as a date.",
            f"{HTTP}#section-10.2.3",
        ),
        told_when_to_retry,
    ),
)
