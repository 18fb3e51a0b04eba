"""The way back: a model server's answer passes through the picker, which must not change it."""

import asyncio
from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.bodies import cut, first_difference, noise, sse_body
from kvmesh_lab.conformance.case import EXT_PROC, MODES, PROTOCOL, Broken, Case, Rule, holds
from kvmesh_lab.conformance.exchange import Answered, Asked, Received, answer, describe, picked
from kvmesh_lab.conformance.link import Call
from kvmesh_lab.conformance.wire import Ended, Modes, body_message

UNTIL_FIRST_TOKEN_S: Final = 0.3
"""A model server thinks so long, at least, before its answer begins."""

EVENTS: Final = 40


async def tokens_at_once(bench: Bench) -> str:
    """Send events one by one; each must come back before the next is sent."""
    events = sse_body(EVENTS, seed=1)
    async with bench.asked(bench.asks(seed=20)) as (call, received):
        picked(received)
        await _one_by_one(call, events)
    return f"{len(events)} events"


async def parts_of_events(bench: Bench) -> str:
    """Send pieces that end within events and within letters; each must come back at once."""
    pieces = cut(b"".join(sse_body(6, seed=2)), 37)
    async with bench.asked(bench.asks(seed=21)) as (call, received):
        picked(received)
        await _one_by_one(call, pieces)
    return f"{len(pieces)} pieces"


async def _one_by_one(call: Call, pieces: list[bytes]) -> None:
    received = Received("response")
    await call.send(Answered(pieces=pieces).first())
    received.take(await call.receive("the answer's headers"))
    sent = 0
    for number, piece in enumerate(pieces, 1):
        await call.send(body_message("response", piece, end=number == len(pieces)))
        sent += len(piece)
        while len(received.body) < sent or (number == len(pieces) and not received.finished):
            waiting = f"bytes up to {sent} of the answer, {len(received.body)} came"
            received.take(await call.receive(waiting))
            _still_open(received)
    _unchanged(b"".join(pieces), received)


async def any_bytes(bench: Bench) -> str:
    """Send an answer that is no text, in pieces of odd sizes."""
    return await _passes(bench, cut(noise(100_000, seed=3), 7919), 22)


async def large(bench: Bench) -> str:
    """Send an answer of 2 MB."""
    return await _passes(bench, cut(noise(2_000_000, seed=4)), 23)


async def with_trailers(bench: Bench) -> str:
    """Send an answer that trailers end."""
    pieces = sse_body(3, seed=5)
    async with bench.asked(bench.asks(seed=24)) as (call, received):
        picked(received)
        back = await answer(call, Answered(pieces=pieces, trailers=(("x-usage", "1"),)))
        ends = [one for one in back.answers[:-1] if getattr(one, "end", False)]
        holds(not ends, "a piece of the answer says that it is the last, but trailers follow")
        _unchanged(b"".join(pieces), back)
    return ""


async def without_a_body(bench: Bench) -> str:
    """Send an answer whose headers are all there is."""
    async with bench.asked(bench.asks(seed=25)) as (call, received):
        picked(received)
        back = await answer(call, Answered(status=204, headers=()))
        holds(not back.pieces, "a body was made up")
    return ""


async def errors_pass(bench: Bench) -> str:
    """Send answers with status 400, 429, 500 and 503."""
    for status in (400, 429, 500, 503):
        body = b'{"error":{"message":"from the model server"}}'
        headers = (("content-type", "application/json"), ("retry-after", "7"))
        async with bench.asked(bench.asks(seed=status)) as (call, received):
            picked(received)
            back = await answer(call, Answered(pieces=(body,), status=status, headers=headers))
            _unchanged(body, back)
            assert back.headers is not None
            changed = [one.name for one in back.headers.set_headers if one.name == ":status"]
            holds(not changed, f"the status {status} was changed")
    return ""


async def stays_until_the_end(bench: Bench) -> str:
    """Wait after the pick, as for a first token; the call must still be there for the answer."""
    async with bench.asked(bench.asks(seed=26)) as (call, received):
        picked(received)
        await asyncio.sleep(UNTIL_FIRST_TOKEN_S)
        found = call.at_hand()
        ended = next((one for one in found if isinstance(one, Ended)), None)
        holds(
            ended is None,
            "the picker ended the call after the pick, before the answer: a gateway loses pieces "
            f"of answers then ({describe(ended)})",
        )
        holds(not found, f"something came after the pick: {found}")
        back = await answer(call, Answered(pieces=sse_body(2)))
        _unchanged(b"".join(sse_body(2)), back)
    return ""


async def told_who_served(bench: Bench) -> str:
    """Name, as the gateway, the endpoint that served."""
    async with bench.asked(bench.asks(seed=27)) as (call, received):
        served = picked(received)[-1]
        back = await answer(call, Answered(pieces=sse_body(2), served=served))
        _unchanged(b"".join(sse_body(2)), back)
    return ""


async def ends_with_it(bench: Bench) -> str:
    """Send a whole answer and half-close; the call must end, with status OK."""
    async with bench.asked(bench.asks(seed=28)) as (call, received):
        picked(received)
        await answer(call, Answered(pieces=sse_body(2)))
        await _ends(call)
    return ""


async def headers_only(bench: Bench) -> str:
    """Announce that answers' bodies are not sent; send headers, and half-close."""
    asked = bench.asks(seed=29)
    quiet = Asked(path=asked.path, body=asked.body, modes=Modes(response="NONE"))
    async with bench.asked(quiet) as (call, received):
        picked(received)
        await call.send(Answered(pieces=(b"not sent",)).first())
        back = Received("response")
        got = await call.receive("the answer's headers")
        if not isinstance(got, Ended):
            back.take(got)
            await _ends(call)
        else:
            holds(got.code == 0, f"the picker ended the call: {describe(got)}")
    return ""


async def nothing_comes(bench: Bench) -> str:
    """Half-close after the pick, as a gateway that processes no answers."""
    asked = bench.asks(seed=30)
    quiet = Asked(path=asked.path, body=asked.body, modes=Modes(response="NONE"))
    async with bench.asked(quiet) as (call, received):
        picked(received)
        await _ends(call)
    return ""


async def _passes(bench: Bench, pieces: list[bytes], seed: int) -> str:
    async with bench.asked(bench.asks(seed=seed)) as (call, received):
        picked(received)
        back = await answer(call, Answered(pieces=pieces))
        _unchanged(b"".join(pieces), back)
    return ""


async def _ends(call: Call) -> None:
    await call.half_close()
    last = await call.receive("the end of the call, which was half-closed")
    if not isinstance(last, Ended):
        raise Broken(f"something came after the answer was over: {last}")
    holds(last.code == 0, f"the call ended with {describe(last)}")


def _still_open(received: Received) -> None:
    holds(
        received.ended is None,
        f"the picker ended the call in the answer: {describe(received.ended)}",
    )
    holds(received.refusal is None, f"the picker replaced an answer: {describe(received.refusal)}")


def _unchanged(sent: bytes, received: Received) -> None:
    holds(not received.unstreamed, "the answer's body was answered with no streamed_response")
    holds(received.body == sent, f"the answer was damaged: {first_difference(sent, received.body)}")


_STREAMS = Rule(
    "A picker supports streaming of responses: tokens reach the client as they are made.",
    PROTOCOL,
)
_PASSES = Rule(
    "What a server does not stream back of a body does not reach the client.",
    MODES,
)
_CLOSES = Rule(
    "If the server ends the call cleanly, the gateway goes on without it; if it ends it with an "
    "error, the client gets one.",
    EXT_PROC,
)

CASES: Final = (
    Case("answer-streams", "must", f"{EVENTS} events, one by one", _STREAMS, tokens_at_once),
    Case("answer-parts", "should", "events cut anywhere", _STREAMS, parts_of_events),
    Case("answer-bytes", "must", "100 KB that are no text", _PASSES, any_bytes),
    Case("answer-2m", "must", "2 MB", _PASSES, large),
    Case(
        "answer-trailers",
        "must",
        "an answer that trailers end",
        Rule("Answers keep the order headers, body, trailers.", MODES),
        with_trailers,
    ),
    Case("answer-empty", "must", "204, without a body", _PASSES, without_a_body),
    Case("answer-errors", "must", "400, 429, 500 and 503 of a model server", _PASSES, errors_pass),
    Case(
        "answer-awaited",
        "must",
        f"the answer begins {UNTIL_FIRST_TOKEN_S} s after the pick",
        Rule(
            "A picker supports streaming of responses, so its call lasts until their end. (An end "
            "after the pick makes Envoy lose pieces of an answer that has begun.)",
            PROTOCOL,
        ),
        stays_until_the_end,
    ),
    Case(
        "answer-served",
        "must",
        "x-gateway-destination-endpoint-served in the metadata",
        Rule(
            "The gateway reports with each response which endpoint served it.",
            f"{PROTOCOL}#destination-endpoint-served",
        ),
        told_who_served,
    ),
    Case("answer-then-end", "must", "an answer, then half-close", _CLOSES, ends_with_it),
    Case("answer-headers-only", "must", "response_body_mode NONE", _CLOSES, headers_only),
    Case("answer-none", "must", "half-close after the pick", _CLOSES, nothing_comes),
)
