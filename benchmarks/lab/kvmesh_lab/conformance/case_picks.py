"""The pick itself: where it is said, in which form, and in which order."""

from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.bodies import PIECE
from kvmesh_lab.conformance.case import EXT_PROC, MODES, PROTOCOL, Case, NotTried, Rule, holds
from kvmesh_lab.conformance.exchange import Asked, describe, picked, picked_twice, same_body
from kvmesh_lab.conformance.wire import HeadersAnswer, Modes

PICKS: Final = 20


async def told_twice(bench: Bench) -> str:
    """Ask for one chat."""
    async with bench.asked(bench.asks()) as (_, received):
        return f"picked {','.join(picked_twice(received))}"


async def of_the_pool(bench: Bench) -> str:
    """Ask for different chats."""
    if not bench.target.endpoints:
        raise NotTried("the endpoints of the picker are not known: name them with --endpoints")
    found: set[str] = set()
    for seed in range(PICKS):
        endpoints = await bench.pick(bench.asks(seed=seed))
        bench.in_pool(endpoints)
        found.add(endpoints[0])
    return f"{len(found)} of {len(bench.pool)} endpoints in {PICKS} picks"


async def alternatives_differ(bench: Bench) -> str:
    """Ask for one chat, and look at the list."""
    endpoints = await bench.pick(bench.asks(seed=2))
    if len(endpoints) == 1:
        return "no alternatives are given"
    holds(len(set(endpoints)) == len(endpoints), f"an endpoint is named twice: {endpoints}")
    bench.in_pool(endpoints)
    return f"{len(endpoints)} in order"


async def route_is_chosen_again(bench: Bench) -> str:
    """Ask for one chat, and look at `clear_route_cache`."""
    async with bench.asked(bench.asks(seed=3)) as (_, received):
        picked(received)
        assert received.headers is not None
        holds(received.headers.clears_route_cache, "clear_route_cache is not set beside the header")
    return ""


async def headers_come_first(bench: Bench) -> str:
    """Send headers, body in 5 pieces; the answers must have their order."""
    asked = bench.asks(5000, seed=4)
    async with bench.asked(Asked(path=asked.path, body=asked.body, piece=1000)) as (_, received):
        picked(received)
        holds(isinstance(received.answers[0], HeadersAnswer), "the headers were not answered first")
        return same_body(asked.body, received)


async def small_pieces(bench: Bench) -> str:
    """Send a body of 300 KB; look at the pieces in which it comes back."""
    async with bench.asked(bench.asks(300_000, seed=5)) as (_, received):
        picked(received)
        largest = max(map(len, received.pieces), default=0)
        holds(largest <= PIECE, f"a piece has {largest} bytes; at most {PIECE} are recommended")
        return f"the largest has {largest} bytes"


async def without_a_body(bench: Bench) -> str:
    """Send GET /v1/models: headers are all there is."""
    asked = Asked(path="/v1/models", method="GET")
    async with bench.asked(asked) as (_, received):
        if received.refusal is not None:
            return f"answered by itself: {describe(received.refusal)}"
        bench.in_pool(picked(received))
    return ""


async def body_not_sent(bench: Bench) -> str:
    """Announce that request bodies are not sent; the pick rests on headers alone."""
    asked = Asked(path=bench.target.path, body=b"", modes=Modes(request="NONE"))
    async with bench.asked(asked) as (_, received):
        if received.refusal is not None:
            raise NotTried(
                f"this picker does not pick without bodies: {describe(received.refusal)}"
            )
        picked(received)
    return ""


_TOLD = Rule(
    "The pick is set as request header x-gateway-destination-endpoint and, with the same value, as "
    "dynamic metadata of that name in envoy.lb: ip:port, or several with commas between.",
    f"{PROTOCOL}#destination-endpoint",
)
_ORDER = Rule(
    "A server may read all of a message before it answers, but answers headers, then body, then "
    "trailers, the body as streamed_response.",
    MODES,
)

CASES: Final = (
    Case("pick-told-twice", "must", "a chat of 600 B", _TOLD, told_twice),
    Case(
        "pick-of-the-pool",
        "must",
        f"{PICKS} different chats",
        Rule(
            "Without a subset, the picker selects from the endpoints of its pool.",
            f"{PROTOCOL}#endpoint-subset",
        ),
        of_the_pool,
    ),
    Case(
        "pick-alternatives",
        "should",
        "a chat; the list of endpoints",
        Rule(
            "The proxy goes down the list until an endpoint is valid, so naming one twice is a "
            "retry at the one that failed.",
            f"{PROTOCOL}#destination-endpoint",
        ),
        alternatives_differ,
    ),
    Case(
        "pick-route-cache",
        "should",
        "a chat; clear_route_cache",
        Rule("clear_route_cache is needed where changed headers decide on the route.", EXT_PROC),
        route_is_chosen_again,
    ),
    Case("pick-order", "must", "headers, body in 5 pieces", _ORDER, headers_come_first),
    Case(
        "pick-pieces",
        "should",
        "a body of 300 KB",
        Rule("Pieces that are streamed back should not exceed 64 KB.", MODES),
        small_pieces,
    ),
    Case(
        "pick-without-body",
        "must",
        "GET /v1/models, headers with end_of_stream",
        Rule("Each request headers message is answered, be there a body or not.", EXT_PROC),
        without_a_body,
    ),
    Case(
        "pick-body-not-sent",
        "should",
        "request_body_mode NONE, headers without end_of_stream",
        Rule(
            "protocol_config says which bodies come; a server that supports it answers by it.",
            EXT_PROC,
        ),
        body_not_sent,
    ),
)
