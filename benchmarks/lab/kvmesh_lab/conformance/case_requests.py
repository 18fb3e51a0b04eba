"""Request bodies of all sizes, and the ways in which one ends."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.case import EXT_PROC, MODES, PROTOCOL, Case, NotTried, Rule, holds
from kvmesh_lab.conformance.exchange import Answered, Asked, describe, picked, same_body
from kvmesh_lab.conformance.link import Call
from kvmesh_lab.conformance.wire import Ended, Refusal

KB: Final = 1000
MB: Final = 1000 * KB
TOO_LARGE: Final = 413
MAY_REFUSE: Final = 2 * MB
"""A body larger than this may be refused with 413: the protocol has no limit, servers do."""

Run = Callable[[Bench], Awaitable[str]]


def body_of(size: int) -> Run:
    """Return the case that sends a body of `size` bytes, and its answer."""

    async def run(bench: Bench) -> str:
        asked = bench.asks(size, seed=size)
        async with bench.asked(asked) as (_, received):
            if received.refusal is not None and size > MAY_REFUSE:
                status = received.refusal.status
                holds(status == TOO_LARGE, f"refused with {status}; {TOO_LARGE} says why")
                return "refused as too large, 413"
            bench.in_pool(picked(received))
            return same_body(asked.body, received)

    return run


async def one_byte(bench: Bench) -> str:
    """Send `{`: no JSON."""
    async with bench.asked(Asked(path=bench.target.path, body=b"{")) as (_, received):
        if received.refusal is not None:
            check_refusal(received.refusal)
            return f"refused with {received.refusal.status}"
        bench.in_pool(picked(received))
        holds(received.body == b"{", f"the body became {received.body!r}")
    return "picked"


async def no_byte(bench: Bench) -> str:
    """Send a POST whose headers are all there is."""
    async with bench.asked(Asked(path=bench.target.path)) as (_, received):
        if received.refusal is not None:
            check_refusal(received.refusal)
            return f"refused with {received.refusal.status}"
        bench.in_pool(picked(received))
        holds(not received.pieces, "a body was made up")
    return "picked"


async def tiny_pieces(bench: Bench) -> str:
    """Send a body in pieces of 1 byte."""
    asked = bench.asks(900, seed=6)
    async with bench.asked(Asked(path=asked.path, body=asked.body, piece=1)) as (_, received):
        picked(received)
        return same_body(asked.body, received)


async def end_twice(bench: Bench) -> str:
    """Send the last piece of the body twice, then an answer."""
    for size in (600, 1_200 * KB):
        asked = bench.asks(size, seed=8)
        again = Asked(path=asked.path, body=asked.body, repeats_end=True)
        async with bench.asked(again) as (call, received):
            picked(received)
            same_body(asked.body, received)
            await _nothing_else(call)
    return ""


async def _nothing_else(call: Call) -> None:
    """Wait for what a second end would be answered with: it comes before the next answer."""
    await call.send(Answered(pieces=(b"{}",)).first())
    following = await call.receive("the answer's headers")
    if isinstance(following, Refusal | Ended):
        clean = isinstance(following, Ended) and following.code == 0
        holds(clean, f"the body's second end was an error: {describe(following)}")
        return
    holds(following.side == "response", "the body's second end was answered, too")


async def ended_by_trailers(bench: Bench) -> str:
    """Send headers, body, and trailers in place of the mark of the last piece."""
    asked = bench.asks(3000, seed=9)
    with_trailers = Asked(
        path=asked.path, body=asked.body, piece=1000, trailers=(("x-checksum", "12345"),)
    )
    async with bench.asked(with_trailers) as (_, received):
        bench.in_pool(picked(received))
        ends = [one for one in received.answers[:-1] if getattr(one, "end", False)]
        holds(not ends, "a piece of the body says that it is the last, but trailers follow")
        return same_body(asked.body, received)


async def broken_json(bench: Bench) -> str:
    """Send a chat that is cut short, as a refusal's form shows."""
    body = bench.asks(seed=10).body[:-20]
    async with bench.asked(Asked(path=bench.target.path, body=body)) as (_, received):
        holds(received.ended is None, f"the picker ended the call: {describe(received.ended)}")
        if received.refusal is None:
            bench.in_pool(picked(received))
            raise NotTried("this picker picks whatever the body is")
        check_refusal(received.refusal)
        try:
            said = msgspec.json.decode(received.refusal.body, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = {}
        holds("error" in said, f"it has no error object: {describe(received.refusal)}")
        types = [one.value for one in received.refusal.headers if one.name == "content-type"]
        holds(types and "json" in types[-1], f"its content-type is {types}, not application/json")
        return f"refused with {received.refusal.status}"


def check_refusal(refusal: Refusal) -> None:
    """Raise `Broken` unless the status of a refusal is one of a client's or a server's error."""
    holds(400 <= refusal.status < 600, f"refused with status {refusal.status}")  # noqa: PLR2004


_WHOLE = Rule(
    "A server may buffer the body, then streams it back in any number of pieces; what it does not "
    "send back does not reach the model server.",
    MODES,
)
_SIZES: Final = (
    ("body-62k", 62 * KB),
    ("body-64k", 64 * 1024),
    ("body-64k-and-1", 64 * 1024 + 1),
    ("body-1m", MB),
    ("body-10m", 10 * MB),
)
_ANSWERED = Rule(
    "Each message of the request is answered, with an ImmediateResponse where it cannot be served.",
    EXT_PROC,
)

CASES: Final = (
    Case("body-0", "must", "POST without a body", _ANSWERED, no_byte),
    Case("body-1", "must", "a body of 1 B, no JSON", _ANSWERED, one_byte),
    *(Case(name, "must", f"a chat of {size:,} B", _WHOLE, body_of(size)) for name, size in _SIZES),
    Case("body-tiny-pieces", "must", "a chat of 900 B in pieces of 1 B", _WHOLE, tiny_pieces),
    Case(
        "body-end-twice",
        "must",
        "the last piece of a body twice, at 600 B and 1.2 MB",
        Rule(
            "Envoy since 1.35 may send the last piece twice (envoyproxy/envoy#46237); a body has "
            "one end, and is answered once.",
            "https://github.com/envoyproxy/envoy/issues/46237",
        ),
        end_twice,
    ),
    Case(
        "body-trailers",
        "must",
        "a body of 3 KB that trailers end",
        Rule(
            "Where there are trailers, no piece has end_of_stream: trailers tell that the body is "
            "complete, and are answered as trailers.",
            MODES,
        ),
        ended_by_trailers,
    ),
    Case(
        "refusal-form",
        "should",
        "a chat that is cut short",
        Rule(
            "A request that gets no endpoint gets an ImmediateResponse; OpenAI's clients read its "
            "error object.",
            f"{PROTOCOL}#destination-endpoint",
        ),
        broken_json,
    ),
)
