"""The service itself: messages of all kinds that gateways, and strangers, may send it."""

from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.case import EXT_PROC, Broken, Case, Rule, holds
from kvmesh_lab.conformance.exchange import Asked, Received, describe, picked, same_body
from kvmesh_lab.conformance.link import CallFailedError
from kvmesh_lab.conformance.wire import PROCESS, Ended, Refusal, body_message, in_text

GRPC: Final = "https://github.com/grpc/grpc/blob/master/doc/statuscodes.md"
PROTOBUF: Final = "https://protobuf.dev/programming-guides/proto3/#unknowns"
UNKNOWN_FIELD: Final = b"\xfa\x3f\x03abc"
"""Field 1023, which no version of the message has, with three bytes."""

HEADERS: Final = 90
HEADER_BYTES: Final = 600
"""54 KB in all: Envoy takes 100 headers and 60 KiB if nothing else is said."""


async def unknown_fields(bench: Bench) -> str:
    """Add a field to each message that its definition does not have."""
    asked = bench.asks(2000, seed=80)
    async with bench.link.call() as call:
        await call.send(*(one + UNKNOWN_FIELD for one in asked.messages()))
        received = Received("request")
        while not received.is_done(whole=False):
            received.take(await call.receive("the pick"))
        bench.in_pool(picked(received))
        return same_body(asked.body, received)


async def many_headers(bench: Bench) -> str:
    """Send 90 headers of 600 bytes."""
    asked = bench.asks(seed=81)
    headers = tuple((f"x-conformance-{number}", "v" * HEADER_BYTES) for number in range(HEADERS))
    bench.in_pool(await bench.pick(Asked(path=asked.path, body=asked.body, headers=headers)))
    return ""


async def values_as_text(bench: Bench) -> str:
    """Send headers in the field `value`, where Envoy writes `raw_value`."""
    asked = bench.asks(seed=82)
    first, *rest = asked.messages()
    async with bench.link.call() as call:
        await call.send(in_text(first), *rest)
        received = Received("request")
        while not received.is_done(whole=False):
            received.take(await call.receive("the pick"))
        bench.in_pool(picked(received))
    return ""


async def no_message(bench: Bench) -> str:
    """Send bytes that are no message; the call must end, and others on the connection go on."""
    async with bench.link.call() as call:
        await call.send(b"\xff" * 20)
        last = await call.receive("the end of a call that makes no sense")
        holds(isinstance(last, Ended | Refusal), f"it was answered: {last}")
        await bench.pick(bench.asks(seed=83))
        return f"the call ended with {describe(last)}" if isinstance(last, Ended) else "refused"


async def body_first(bench: Bench) -> str:
    """Send a body without headers; something must come of it, and others go on."""
    async with bench.link.call() as call:
        await call.send(body_message("request", b"{}", end=True))
        came = await call.receive("an answer, or the end, of a call that begins with a body")
        await bench.pick(bench.asks(seed=84))
        if isinstance(came, Ended | Refusal):
            return f"refused: {describe(came)}"
        return "answered"


async def unknown_method(bench: Bench) -> str:
    """Call a method that the service does not have."""
    try:
        await bench.link.ask_once(f"{PROCESS}Nothing", b"")
    except CallFailedError as error:
        holds(error.code == "UNIMPLEMENTED", f"{error}; expected UNIMPLEMENTED")
        return ""
    raise Broken("a method that the service does not have was answered")


async def silent_call(bench: Bench) -> str:
    """Open a call and half-close it; it must end."""
    async with bench.link.call() as call:
        await call.half_close()
        last = await call.receive("the end of a call without messages")
        holds(isinstance(last, Ended), f"it was answered: {last}")
    await bench.pick(bench.asks(seed=85))
    return ""


_MESSAGES = Rule(
    "Each message has exactly one of its kinds set, request headers first; the server answers, "
    "or ends the call.",
    EXT_PROC,
)

CASES: Final = (
    Case(
        "call-unknown-fields",
        "must",
        "a field of a later version in each message",
        Rule("A parser accepts fields that it does not know.", PROTOBUF),
        unknown_fields,
    ),
    Case(
        "call-many-headers",
        "must",
        f"{HEADERS} headers of {HEADER_BYTES} B",
        Rule("The headers of the HTTP request are in the first message, all of them.", EXT_PROC),
        many_headers,
    ),
    Case(
        "call-values-as-text",
        "should",
        "headers in `value`",
        Rule("A header's value is in raw_value; gateways before it had only value.", EXT_PROC),
        values_as_text,
    ),
    Case("call-no-message", "must", "20 bytes that are no message", _MESSAGES, no_message),
    Case("call-body-first", "must", "a body without headers", _MESSAGES, body_first),
    Case("call-silent", "must", "a call without messages, half-closed", _MESSAGES, silent_call),
    Case(
        "call-unknown-method",
        "should",
        "a method that does not exist",
        Rule("A method that is not implemented is answered UNIMPLEMENTED.", GRPC),
        unknown_method,
    ),
)
