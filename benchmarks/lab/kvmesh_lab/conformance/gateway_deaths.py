"""Through Envoy: the picker dies before, during and after the pick, with either failure mode."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from kvmesh_lab.conformance.bodies import sse_body
from kvmesh_lab.conformance.case import EXT_PROC, Case, Rule, holds
from kvmesh_lab.conformance.gateway_bench import OK, POLL_S, GatewayBench, Kind, echo_of
from kvmesh_lab.conformance.gateway_client import Got, Sent

POOL_API: Final = "https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/"
EVENTS: Final = 40
BODY: Final = 100_000

Run = Callable[[GatewayBench], Awaitable[str]]


def dead_before(kind: Kind) -> Run:
    """Return the case in which the picker is dead when the request comes."""

    async def run(bench: GatewayBench) -> str:
        async with _revived(bench, kind) as address:
            await bench.relay.die()
            if kind == "closed":
                return _refused(await bench.send(bench.chat(seed=1), address))
            return await _served_in_the_end(bench, address)

    return run


def dead_during(kind: Kind) -> Run:
    """Return the case in which it dies with the request in its hands."""

    async def run(bench: GatewayBench) -> str:
        async with _revived(bench, kind) as address:
            bench.relay.hold_answers()
            bench.relay.passed.clear()
            sending = asyncio.create_task(bench.send(bench.chat(BODY, seed=2), address))
            passing = asyncio.create_task(bench.relay.passed.wait())
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(
                {sending, passing}, timeout=bench.target.patience_s, return_when=first
            )
            passing.cancel()
            await asyncio.sleep(0.1)  # the rest of the body is on its way
            await bench.relay.die()
            got = await sending
            if kind == "open" and got.status == OK:
                return f"served by {echo_of(got).endpoint}"
            return _refused(got)

    return run


def dead_after(kind: Kind) -> Run:
    """Return the case in which it dies while the answer streams."""

    async def run(bench: GatewayBench) -> str:
        async with _revived(bench, kind) as address:
            chat = bench.chat(seed=3, answer=f"sse {EVENTS} 0.01")
            dying = Sent(
                path=chat.path, body=chat.body, headers=chat.headers, pause=bench.relay.die
            )
            got = await bench.send(dying, address)
            expected = b"".join(sse_body(EVENTS, seed=EVENTS))
            holds(got.status == OK, f"the answer never began: {got}")
            whole = bytes(got.body) == expected
            holds(
                whole or not got.complete,
                f"a damaged answer looks complete: {len(got.body)} of {len(expected)} bytes",
            )
            holds(expected.startswith(bytes(got.body)), "bytes miss in the middle of an answer")
            return "whole" if whole else f"cut off visibly after {len(got.body)} bytes"

    return run


@asynccontextmanager
async def _revived(bench: GatewayBench, kind: Kind) -> AsyncGenerator[str]:
    """Yield a gateway of that kind whose picker picks; it is brought back to life afterwards."""
    address = await bench.gateway(kind)
    await bench.until_served(address)
    try:
        yield address
    finally:
        await bench.relay.die()
        await bench.relay.start()


async def _served_in_the_end(bench: GatewayBench, address: str) -> str:
    """Return who serves once the gateway has noticed; until then, requests may be refused."""
    deadline = asyncio.get_running_loop().time() + bench.target.patience_s
    for refused in itertools.count():
        got = await bench.send(bench.chat(seed=refused), address)
        if got.status == OK or asyncio.get_running_loop().time() > deadline:
            served = f"served by {echo_of(got).endpoint}"
            return f"{served}, after {refused} refused" if refused else served
        _refused(got)
        await asyncio.sleep(POLL_S)
    raise AssertionError


def _refused(got: Got) -> str:
    holds(got.complete, f"the client was left without an answer: {got}")
    holds(500 <= got.status < 600, f"a request without a pick got {got}")  # noqa: PLR2004
    return f"refused with {got.status}"


_CLOSED = Rule(
    "With failure mode FailClose, a request without a pick fails; it is not sent anywhere.",
    POOL_API,
)
_OPEN = Rule(
    "With failure mode FailOpen, the gateway chooses an endpoint itself; of a body that it has "
    "begun to stream it keeps no copy, and fails.",
    POOL_API,
)
_AFTER = Rule(
    "If the call ends with an error, so does the answer; it must not look complete.", EXT_PROC
)

CASES: Final = (
    Case("death-before-closed", "must", "no picker, FailClose", _CLOSED, dead_before("closed")),
    Case("death-before-open", "must", "no picker, FailOpen", _OPEN, dead_before("open")),
    Case("death-during-closed", "must", "it dies with a body", _CLOSED, dead_during("closed")),
    Case("death-during-open", "must", "it dies with a body", _OPEN, dead_during("open")),
    Case("death-after-closed", "must", "it dies in an answer", _AFTER, dead_after("closed")),
    Case("death-after-open", "must", "it dies in an answer", _AFTER, dead_after("open")),
)
