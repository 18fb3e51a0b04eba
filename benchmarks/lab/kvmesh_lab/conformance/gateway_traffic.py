"""Through Envoy: picks obeyed, bodies and answers byte-identical, clients that are slow or go."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kvmesh_lab.conformance.bodies import sse_body
from kvmesh_lab.conformance.case import (
    EXT_PROC,
    HTTP,
    HTTP2,
    MODES,
    PROTOCOL,
    Case,
    NotTried,
    Rule,
    holds,
)
from kvmesh_lab.conformance.gateway_bench import (
    OK,
    POLL_S,
    GatewayBench,
    Kind,
    echo_of,
    same_answer,
    same_request,
    whole,
)
from kvmesh_lab.conformance.gateway_client import Got, Sent
from kvmesh_lab.conformance.gateway_endpoints import ASK, TRAILER, bulk
from kvmesh_lab.conformance.wire import DESTINATION, SUBSET

CHATS: Final = 20
STREAMS: Final = 60
AT_ONCE: Final = 12
GAPS_S: Final = (0.0, 0.0, 0.0005, 0.001, 0.002, 0.005)
"""Before each event, the first one too: an end of the call that meets it shows."""

ENDLESS: Final = "sse 3000 0.005"
"""An answer of 15 s, in pieces: a gateway may take a faster one whole, whoever reads it."""

SLOW_BYTES: Final = 3_000_000
UNAVAILABLE: Final = 503
TOO_LARGE: Final = 413
MAY_REFUSE: Final = 2_000_000

Run = Callable[[GatewayBench], Awaitable[str]]


async def obeyed(bench: GatewayBench) -> str:
    """Send chats; each must be served by the first endpoint of its pick."""
    found: set[str] = set()
    for seed in range(CHATS):
        sent = bench.chat(seed=seed)
        echo = echo_of(await bench.send(sent))
        holds(
            echo.reported.split(",")[0].strip() == echo.endpoint,
            f"the pick is {echo.reported!r}, {echo.endpoint} served",
        )
        same_request(sent, echo)
        found.add(echo.endpoint)
    return f"{len(found)} of {len(bench.servers)} endpoints served"


def body_of(size: int) -> Run:
    """Return the case that sends a body of `size` bytes."""

    async def run(bench: GatewayBench) -> str:
        sent = bench.chat(size, seed=size)
        if size <= 1:
            sent = Sent(path=bench.target.path, body=b"{"[:size], headers=((ASK, "echo"),))
        got = await bench.send(sent)
        if size <= 1 and got.complete and 400 <= got.status < 500:  # noqa: PLR2004  client's errors
            return f"refused with {got.status}"
        if size > MAY_REFUSE and got.complete and got.status == TOO_LARGE:
            return "refused as too large, 413"
        same_request(sent, echo_of(got))
        return ""

    return run


def streams_whole(kind: Kind = "plain") -> Run:
    """Return the case in which no byte of a streamed answer may miss, short or long."""

    async def run(bench: GatewayBench) -> str:
        return await _streams(bench, await bench.gateway(kind))

    return run


async def _streams(bench: GatewayBench, address: str) -> str:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, events: int) -> None:
        async with gate:
            asked = f"sse {events} {GAPS_S[number % len(GAPS_S)]}"
            got = await bench.send(bench.chat(seed=number, answer=asked), address)
        same_answer(b"".join(sse_body(events, seed=events)), got)

    for number in range(STREAMS // 2):
        await one(number, 1 + number % 4)
    await asyncio.gather(*(one(number, 5 + number) for number in range(STREAMS // 2)))
    return f"{STREAMS} answers, half of them {AT_ONCE} at once"


async def errors_pass(bench: GatewayBench) -> str:
    """Send chats that model servers answer with 400, 429 and 503."""
    for status in (400, 429, 503):
        got = whole(await bench.send(bench.chat(seed=3, answer=f"status {status}")), status)
        holds(got.headers.get("retry-after") == "7", f"{status} lost its retry-after")
        holds(b"of the model server" in got.body, f"{status} lost its body: {bytes(got.body)!r}")
    return ""


async def leave_to_continue(bench: GatewayBench) -> str:
    """Send the body only after `100 Continue`."""
    chat = bench.chat(3000, seed=4)
    sent = Sent(path=chat.path, body=chat.body, headers=chat.headers, expects=True)
    got = await bench.send(sent)
    holds(got.continued, f"no leave was given to send the body: {got}")
    same_request(sent, echo_of(got))
    return ""


async def retried(bench: GatewayBench) -> str:
    """Send chats that the first model server answers 503; what the gateway sends again is whole."""
    for size in (600, 30_000):
        for seed in range(3):
            sent = bench.chat(size, seed=seed, answer=f"once {size}-{seed}")
            got = await bench.send(sent)
            if got.status == UNAVAILABLE:
                raise NotTried("the gateway did not send it again: no other endpoint was named")
            same_request(sent, echo_of(got))
    return ""


async def with_trailers(bench: GatewayBench) -> str:
    """Send chats whose bodies and answers trailers end, small and large."""
    address = await bench.gateway("trailing")
    for size in (600, 200_000):
        for seed in range(5):
            chat = bench.chat(size, seed=seed)
            value = f"{size}-{seed}"
            sent = Sent(
                path=chat.path,
                body=chat.body,
                headers=(*chat.headers, ("te", "trailers")),
                trailers=((TRAILER, value),),
            )
            got = await bench.send(sent, address)
            same_request(sent, echo_of(got))
            came = got.headers.get(TRAILER)
            holds(came == value, f"the trailer {value!r} came back as {came!r}")
    return ""


async def slow_client(bench: GatewayBench) -> str:
    """Read nothing of an answer of 3 MB while others are served; then it must be whole."""
    others: list[Got] = []

    async def meanwhile() -> None:
        chats = (bench.send(bench.chat(seed=number)) for number in range(CHATS))
        others.extend(await asyncio.gather(*chats))

    chat = bench.chat(seed=5, answer=f"bulk {SLOW_BYTES}")
    slow = Sent(path=chat.path, body=chat.body, headers=chat.headers, pause=meanwhile)
    got = await bench.send(slow)
    for other in others:
        echo_of(other)
    holds(len(others) == CHATS, f"the slow answer never began: {got}")
    same_answer(b"".join(bulk(SLOW_BYTES)), got)
    return f"{CHATS} others meanwhile"


async def clients_go(bench: GatewayBench) -> str:
    """Leave in the middle of answers; the model servers must learn of it, and others be served."""
    before = sum(server.left for server in bench.servers)
    for seed in range(6):
        chat = bench.chat(seed=seed, answer=ENDLESS)
        leaving = Sent(path=chat.path, body=chat.body, headers=chat.headers, leaves_after=1)
        got = await bench.send(leaving)
        holds(got.status == OK, f"the answer never began: {got}")
    deadline = asyncio.get_running_loop().time() + bench.target.patience_s
    while (left := sum(server.left for server in bench.servers) - before) < 6:  # noqa: PLR2004
        late = asyncio.get_running_loop().time() > deadline
        holds(not late, f"of 6 clients that went, model servers learnt of {left}")
        await asyncio.sleep(0.02)
    echo_of(await bench.send(bench.chat(seed=6)))
    return ""


async def many_at_once(bench: GatewayBench) -> str:
    """Send 100 chats of up to 200 KB at once."""
    chats = [bench.chat(600 + 2000 * number, seed=number) for number in range(100)]
    for sent, got in zip(chats, await asyncio.gather(*map(bench.send, chats)), strict=True):
        same_request(sent, echo_of(got))
    return ""


async def not_fooled(bench: GatewayBench) -> str:
    """Name, as a client, another endpoint, where the gateway allows the first and reads headers."""
    address = await bench.gateway("narrowed")
    mine, other = bench.servers[0].address, bench.servers[-1].address
    for name in (DESTINATION, SUBSET):
        for seed in range(4):
            chat = bench.chat(seed=seed)
            sent = Sent(path=chat.path, body=chat.body, headers=(*chat.headers, (name, other)))
            echo = echo_of(await bench.send(sent, address))
            holds(echo.endpoint == mine, f"the client's {name} decided: {echo.endpoint} served")
    return ""


async def refused(bench: GatewayBench) -> str:
    """Send chats where the gateway allows only strangers; clients must see the picker's refusal."""
    address = await bench.gateway("strange")
    deadline = asyncio.get_running_loop().time() + bench.target.patience_s
    while True:
        got = await bench.send(bench.chat(seed=7), address)
        late = asyncio.get_running_loop().time() > deadline
        if (got.status == UNAVAILABLE and got.body) or late:
            break  # before it knows that the picker is healthy, Envoy refuses by itself
        await asyncio.sleep(POLL_S)
    whole(got, UNAVAILABLE)
    holds(got.body, "the refusal has no body")
    return f"{bytes(got.body[:60])!r}"


_WHOLE = Rule(
    "The gateway passes on what the picker streams back, so all of it must come back.", MODES
)
_BY_MODE = Rule(
    "Which parts of a response the picker sees is the gateway's setting, named in protocol_config.",
    EXT_PROC,
)
_SIZES: Final = (
    ("0", 0),
    ("1", 1),
    ("62k", 62_000),
    ("64k", 65_536),
    ("1m", 1_000_000),
    ("10m", 10_000_000),
)

CASES: Final = (
    Case(
        "envoy-obeyed",
        "must",
        f"{CHATS} chats; who served them",
        Rule("The first valid endpoint of the pick is used.", f"{PROTOCOL}#destination-endpoint"),
        obeyed,
    ),
    *(
        Case(f"envoy-body-{name}", "must", f"a body of {size:,} B", _WHOLE, body_of(size))
        for name, size in _SIZES
    ),
    Case(
        "envoy-streams",
        "must",
        f"{STREAMS} streamed answers, compared byte by byte",
        Rule(
            "A picker supports streaming of responses: with status 200 a client gets what "
            "the model server sent.",
            PROTOCOL,
        ),
        streams_whole(),
    ),
    Case(
        "envoy-headers-only",
        "should",
        "the same, the picker sees only headers of answers",
        _BY_MODE,
        streams_whole("headers"),
    ),
    Case(
        "envoy-no-answers",
        "should",
        "the same, the picker sees nothing of answers",
        _BY_MODE,
        streams_whole("silent"),
    ),
    Case("envoy-errors", "must", "400, 429 and 503 of model servers", _WHOLE, errors_pass),
    Case(
        "envoy-continue",
        "must",
        "Expect: 100-continue",
        Rule("A client may wait for 100 before it sends the body.", f"{HTTP}#section-10.1.1"),
        leave_to_continue,
    ),
    Case(
        "envoy-retried",
        "should",
        "6 chats that the first model server answers 503",
        Rule(
            "Where retries are configured, the proxy goes down the list of endpoints until one "
            "serves.",
            f"{PROTOCOL}#destination-endpoint",
        ),
        retried,
    ),
    Case(
        "envoy-trailers",
        "must",
        "10 chats that trailers end, their answers too",
        Rule(
            "Trailers mean that a body is complete; they are answered, and passed on behind it.",
            MODES,
        ),
        with_trailers,
    ),
    Case(
        "envoy-slow-client",
        "must",
        "an answer of 3 MB that is not read, others meanwhile",
        Rule("Streams of a connection advance independently of one that stalls.", HTTP2),
        slow_client,
    ),
    Case(
        "envoy-client-gone",
        "must",
        "6 clients leave in their answers",
        Rule("Each HTTP request has a call of its own, which ends with it.", EXT_PROC),
        clients_go,
    ),
    Case("envoy-at-once", "must", "100 chats of up to 200 KB at once", _WHOLE, many_at_once),
    Case(
        "envoy-refusal",
        "must",
        "a gateway that allows only strangers",
        Rule(
            "Where no endpoint of the subset is eligible, the ImmediateResponse has status "
            "503; the gateway sends it as it is.",
            f"{PROTOCOL}#endpoint-subset",
        ),
        refused,
    ),
    Case(
        "envoy-not-fooled",
        "must",
        "a client's own destination and subset, a gateway that reads headers",
        Rule(
            "The picker sets the destination; what a client sent under that name does not count.",
            f"{PROTOCOL}#destination-endpoint",
        ),
        not_fooled,
    ),
)
