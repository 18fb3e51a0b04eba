"""One owner for a request: an error of ours at any of its stations ends it, and only it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.router.command import RouterServer
from kvmesh.app.serve.admission import AdmissionGate
from kvmesh.app.serve.disaggregated import DisaggregatedRequest
from kvmesh.app.serve.gateway import Gateway
from kvmesh.app.serve.going_home import GoingHome
from kvmesh.app.serve.prefill import Prefill
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.placing import Placer
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.settings.features import SplitSettings
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings, FailureSettings, StreamSettings
from kvmesh.settings.roles import CostSettings, MetaRouterSettings, RouterSettings
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.passed_answer import PassedAnswer
from kvmesh.transport.http.server.connection import Connection
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.call import UpstreamCall
from kvmesh.transport.http.upstream.client import UpstreamHost, UpstreamPool
from kvmesh.transport.http.upstream.connection import UpstreamConnection
from kvmesh.transport.http.wire.deadlines import ForwardClock
from tests.integration.serve.test_disaggregation import engines as pretend_engines
from tests.integration.support.failing_engine import (
    Answer,
    FailingEngine,
    answer_well,
    close_unanswered,
    failing_engines,
    never_answer,
)
from tests.integration.support.live_router import free_port, serving
from tests.integration.support.planted import Inside, Planted, ask, looked_inside, silent

pytestmark = pytest.mark.integration

Points = list[tuple[type, str]]

TRIES = 10
PROMPT = "What everybody asks about, again and again. " * 30
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4}
STREAM = {**CHAT, "stream": True}
LONG = {**CHAT, "messages": [{"role": "user", "content": PROMPT * 10}]}
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"ok"}}]}\n\n'

GENERAL = {"content-encoding": "identity"}
"""With which no request is placed as it is scanned."""

BEGUN: Points = [
    (Reader, "read"),
    (Reader, "make"),
    (GoingHome, "begin"),
    (RoutedRequest, "__init__"),
    (Forward, "begin"),
]
SENT: Points = [
    (RoutedRequest, "next_target"),
    (Dispatch, "decide"),
    (Scheduler, "schedule"),
    (RoutedRequest, "_go"),
    (Forward, "send"),
    (UpstreamPool, "send"),
    (UpstreamCall, "send_on"),
]
ANSWERED: Points = [
    (UpstreamConnection, "_parse"),
    (PassedAnswer, "on_head"),
    (PassedAnswer, "_commit"),
    (RoutedRequest, "on_head"),
    (Exchange, "pass_head"),
    (Exchange, "write"),
    (UpstreamConnection, "_complete"),
]
PIECES: Points = [(PassedAnswer, "on_body")]
PARSED: Points = [(PassedAnswer, "on_end"), (Exchange, "end")]
LAST: Points = [(PassedAnswer, "on_last_chunks"), (Exchange, "end_framed")]
ENDED: Points = [
    (Exchange, "_finish"),
    (Connection, "answered"),
    (Forward, "_over"),
    (RoutedRequest, "on_finish"),
    (Dispatch, "finished"),
    (RoutedRequest, "_closed"),
]
LEFT: Points = [
    *(one for one in ENDED if one[0] is RoutedRequest),
    (RoutedRequest, "_release"),
    (Dispatch, "release"),
    (Dispatch, "finished"),
    (Scheduler, "release"),
]
"""Where requests pass whose client leaves before the answer."""
WHOLE: Points = [(PassedAnswer, "on_whole"), (Exchange, "pass_whole")]
STREAMED: Points = [
    (PassedAnswer, "on_due"),
    (RoutedRequest, "on_tokens"),
    (RoutedRequest, "progress"),
    (Dispatch, "seen"),
]
FAILED: Points = [
    (PassedAnswer, "on_failure"),
    (Forward, "fail"),
    (Forward, "_may_retry"),
    (RoutedRequest, "on_attempt_failed"),
    (RoutedRequest, "_fail"),
    (RoutedRequest, "_release"),
    (Dispatch, "release"),
    (Scheduler, "release"),
    (UpstreamCall, "failed"),
    (UpstreamConnection, "_fail"),
]


class Stations(NamedTuple):
    """Where requests of one way pass, by how far they have come."""

    headers: dict[str, str]
    begun: Points
    sent: Points
    answered: Points
    ended: Points
    streamed: Points
    failed: Points


BY_DISPATCH = Stations(GENERAL, BEGUN, SENT, ANSWERED, ENDED, STREAMED, FAILED)
COMPILED = Stations(
    {},
    [
        (Gateway, "_serve_scanned"),
        (Reader, "scan"),
        (Placer, "decide"),
        (Gateway, "_begin_placed"),
        (Gateway, "_begin"),
        (RoutedRequest, "__init__"),
        (Forward, "begin"),
    ],
    [one for one in SENT if one[0] not in (Dispatch, Scheduler)],
    ANSWERED,
    ENDED,
    STREAMED,
    [*FAILED, (Dispatch, "decide"), (Scheduler, "schedule")],
)
WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param(BY_DISPATCH, id="dispatch"),
        pytest.param(COMPILED, id="compiled"),
    ],
)
"""Requests that wish something, and those that wish nothing."""


class Watched(RouterServer):
    """A router whose insides are looked at."""

    context: RoutingContext

    def _context(self) -> RoutingContext:
        self.context = super()._context()
        return self.context


def of_requests(one: Any, *arguments: Any) -> bool:  # noqa: PLR0911  one a case
    """Return whether a method is called for a request, not for a probe."""
    match one:
        case UpstreamPool():
            return isinstance(arguments[1], PassedAnswer)
        case UpstreamHost():
            return of_requests(arguments[0])
        case UpstreamConnection():
            return isinstance(one._sink, PassedAnswer)
        case UpstreamCall():
            return isinstance(one.sink, PassedAnswer)
        case Exchange():
            return one.request.path.startswith("/v1/chat")
        case Connection():
            return one._exchange is not None and of_requests(one._exchange)
        case _:
            return True


def at_the_router(port: int) -> Callable[..., bool]:
    """Return what tells a router's requests from those of the engines, and from its probes."""

    def is_there(one: Any, *arguments: Any) -> bool:
        connection = one.channel if isinstance(one, Exchange) else one
        if isinstance(connection, Connection):
            here = connection.transport.get_extra_info("sockname")[1] == port
            return here and of_requests(one)
        return of_requests(one, *arguments)

    return is_there


def answer_alike(exchange: Exchange) -> None:
    """Answer in one piece, each time with the same head within a second."""
    body = json.dumps({"choices": [{"message": {"content": "ok"}}]}).encode()
    exchange.start(200, ((b"content-type", b"application/json"),), len(body))
    exchange.write(body)
    exchange.end()


def answer_oddly(exchange: Exchange) -> None:
    """Answer with a head that is left to the parser."""
    body = json.dumps({"choices": [{"message": {"content": "ok"}}]}).encode()
    exchange.respond(200, body, headers=((b"proxy-connection", b"keep-alive"),))


def stream_slowly(exchange: Exchange) -> None:
    """Answer in a stream of three events, each in a read of its own."""
    loop = asyncio.get_running_loop()
    exchange.start(200, ((b"content-type", b"text/event-stream"),))

    def go_on(more: int) -> None:
        if not exchange.ended:
            exchange.write(CHUNK if more else b"data: [DONE]\n\n")
            if more:
                loop.call_later(0.01, go_on, more - 1)
            else:
                exchange.end()

    go_on(3)


def answer_first(answer: Answer, times: int = 1) -> Answer:
    """Return what does that for the first of all requests, and is well behind them."""
    left = [answer] * times

    def answer_next(exchange: Exchange) -> None:
        (left.pop() if left else answer_well)(exchange)

    return answer_next


def both(points: Points) -> Iterator[Planted]:
    """Yield the faults at these points, each before and behind what happens there."""
    for owner, name in points:
        for late in (False, True):
            yield Planted(owner, name, late=late)


def settings(urls: list[str], port: int, **more: Any) -> RouterSettings:
    """Return the settings of a router alone."""
    more.setdefault("worker", tuple(f"w{number}={url}" for number, url in enumerate(urls)))
    return RouterSettings(
        **{
            "kv_events": False,
            "router_id": "r0",
            "seed": 1,
            "parity_sample": 0,
            "http": HttpSettings(http_port=port, **more.pop("http", {"drain_s": 1.0})),
            **more,
        }
    )


class Door:
    """Where requests go in, and what counts how they end."""

    def __init__(
        self, port: int, ends: RequestEnds, counted: Callable[[], int], inside: Inside
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.inside = inside
        self._sent = 0
        self.model = "m"
        self.headers: dict[str, str] = {}
        self.at_the_router = at_the_router(port)
        self._ends = ends
        self._counted = counted

    async def check(self, planted: Planted, body: dict[str, Any], allowed: set[str]) -> list[str]:
        """Send a request into the fault; return what is wrong behind it."""
        self._sent += 1
        wrong = []
        text = f"{self._sent} {PROMPT}"
        body = {**body, "model": self.model, "messages": [{"role": "user", "content": text}]}
        with planted.in_place(self.at_the_router):
            seen = await ask(self.url, body, headers=self.headers)
            held = await self.inside.all_released()
        if not planted.fired:
            wrong.append("was not reached")
        if seen not in allowed:
            wrong.append(f"the client saw {seen}")
        if held:
            wrong.append(f"held {held}")
        if self.ended() != self._counted():
            wrong.append(f"{self.ended()} ends of {self._counted()} requests")
        again = {**CHAT, "model": self.model, "user": text}
        if (after := await ask(self.url, again, headers=self.headers)) != "whole":
            wrong.append(f"the next request saw {after}")
        if held := await self.inside.all_released():
            wrong.append(f"held {held} after the next request")
        return [f"{planted}: {one}" for one in wrong]

    async def check_all(self, points: Points, body: dict[str, Any], *allowed: str) -> list[str]:
        """Do so for all points."""
        return [
            line
            for planted in both(points)
            for line in await self.check(planted, body, set(allowed))
        ]

    def at_the_gate(self) -> int:
        """Return how many requests wait for their turn."""
        return self.inside.at_the_gate()

    async def held(self) -> dict[str, int]:
        """Return what requests hold after a while."""
        return await self.inside.all_released()

    def ended(self) -> int:
        """Return how many requests ended."""
        return sum(count for _, count in self._ends.items())


@contextlib.asynccontextmanager
async def door_to(engines: list[FailingEngine], **more: Any) -> AsyncIterator[Door]:
    """Serve a router over engines."""
    port = free_port()
    server = Watched(settings([one.url for one in engines], port, **more))
    with silent():
        async with serving(server.serve, f"http://127.0.0.1:{port}"):
            counters = server.context.counters
            with looked_inside() as inside:
                yield Door(port, counters.ends, lambda: counters.requests, inside)


@WAYS
async def test_an_error_before_the_answer_is_a_500(way: Stations) -> None:
    stream = StreamSettings(request_timeout_s=60.0)
    async with failing_engines(2) as engines, door_to(engines, stream=stream) as door:
        door.headers = way.headers
        wrong = await door.check_all([*way.begun, *way.sent], CHAT, "500")

    assert wrong == []


@WAYS
async def test_an_error_within_the_answer_is_a_500_an_event_or_a_cut(way: Stations) -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        door.headers = way.headers
        for engine in engines:
            engine.answer = answer_oddly
        wrong = await door.check_all([*way.answered, *PARSED], CHAT, "500", "abort", "whole")
        for engine in engines:
            engine.answer = stream_slowly
        points = [*way.answered, *PIECES]
        wrong += await door.check_all(points, STREAM, "500", "event", "abort", "whole")
        wrong += await door.check_all(way.streamed, STREAM, "event", "abort")

    assert wrong == []


@pytest.mark.parametrize(
    ("answer", "points", "body", "allowed"),
    [
        (answer_alike, WHOLE, CHAT, ("500", "abort", "whole")),
        (stream_slowly, LAST, STREAM, ("event", "abort", "whole")),
    ],
)
async def test_an_error_in_an_answer_whose_head_is_known_is_a_cut(
    answer: Answer, points: Points, body: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        engines[0].answer = answer
        wrong: list[str] = []
        for _ in range(TRIES):
            for _ in range(2):
                await ask(door.url, body)
            wrong = await door.check_all(points, body, *allowed)
            if not any("was not reached" in one for one in wrong):
                break  # else a second has passed, and the head was another one

    assert wrong == []


@WAYS
async def test_an_error_behind_the_answer_releases_all_the_same(way: Stations) -> None:
    async with failing_engines(2) as engines, door_to(engines) as door:
        door.headers = way.headers
        wrong = await door.check_all(way.ended, CHAT, "500", "abort", "whole")
        wrong += await door.check_all(way.ended, STREAM, "event", "abort", "whole")

    assert wrong == []


@WAYS
async def test_an_error_at_a_failed_attempt_is_a_500(way: Stations) -> None:
    failure = FailureSettings(wait_for_worker_s=0.0)
    async with failing_engines(2) as engines, door_to(engines, failure=failure) as door:
        door.headers = way.headers
        wrong = []
        for planted in both(way.failed):
            answer = answer_first(close_unanswered, times=2)
            for engine in engines:
                engine.answer = answer
            wrong += await door.check(planted, CHAT, {"500"})

    assert wrong == []


async def test_an_error_in_a_thread_that_tokenises_is_a_500(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ByteTokenizer, "inline_characters", 0)
    points = [(Reader, "_read_in_thread"), *BEGUN[1:], SENT[0]]
    async with failing_engines(2) as engines, door_to(engines) as door:
        door.headers = GENERAL
        wrong = await door.check_all(points[1:], CHAT, "500")
        wrong += await door.check(Planted(*points[0], late=False), CHAT, {"500"})

    assert wrong == []


TIMED: Points = [
    (ForwardClock, "on_deadline"),
    (Forward, "comment"),
    (Forward, "expire"),
]


async def test_an_error_at_a_timer_ends_the_request_and_no_other() -> None:
    stream = StreamSettings(sse_comment_s=0.1, request_timeout_s=1.0)
    async with failing_engines(2) as engines, door_to(engines, stream=stream) as door:
        wrong = []
        for planted in both(TIMED):
            answer = answer_first(never_answer)
            for engine in engines:
                engine.answer = answer
            wrong += await door.check(planted, STREAM, {"500", "event", "abort"})

    assert wrong == []


HELD: Points = [
    (AdmissionGate, "wait"),
    (RoutedRequest, "_on_turn"),
]


@pytest.mark.parametrize("planted", list(both(HELD)), ids=str)
async def test_an_error_at_the_gate_is_a_500_and_keeps_nobody_waiting(planted: Planted) -> None:
    admission = AdmissionSettings(max_backlog_ms=100.0, busy_prefill_tokens=100)
    kept: list[Exchange] = []
    async with failing_engines(1) as engines, door_to(engines, admission=admission) as door:
        engines[0].answer = kept.append
        before = asyncio.create_task(ask(door.url, LONG))
        while not kept:  # noqa: ASYNC110  an engine of this process
            await asyncio.sleep(0.01)
        engines[0].answer = answer_well

        async def let_go() -> None:
            while not (door.at_the_gate() or planted.fired):  # noqa: ASYNC110  a gate cannot tell
                await asyncio.sleep(0.01)
            answer_well(kept.pop())

        letting_go = asyncio.create_task(let_go())
        wrong = await door.check(planted, CHAT, {"500"})
        letting_go.cancel()
        await asyncio.gather(letting_go, return_exceptions=True)
        for exchange in kept:
            answer_well(exchange)

        assert (await before, wrong) == ("whole", [])


async def test_an_error_at_the_end_of_a_request_whose_client_left_releases_it() -> None:
    async with failing_engines(1) as engines, door_to(engines) as door:
        for owner, name in LEFT[1:]:
            engines[0].answer, count = never_answer, len(engines[0].prompts)
            planted = Planted(owner, name, late=False)
            with planted.in_place(of_requests):
                leaving = asyncio.create_task(ask(door.url, CHAT, headers=GENERAL))
                while len(engines[0].prompts) == count:  # noqa: ASYNC110  an engine of this process
                    await asyncio.sleep(0.01)
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
                held = await door.held()
            assert (planted.fired, held) == (True, {}), f"{planted}"
            engines[0].answer = answer_well
            assert await ask(door.url, CHAT) == "whole"


SPLIT: Points = [
    (DisaggregatedRequest, "__init__"),
    (DisaggregatedRequest, "next_target"),
    (DisaggregatedRequest, "_choose"),
    (DisaggregatedRequest, "_begin_prefill"),
    (DisaggregatedRequest, "_ask"),
    (Prefill, "__init__"),
    (Prefill, "book"),
    (Prefill, "ends"),
    (Prefill, "give_back"),
    (DisaggregatedRequest, "_await_prefill"),
    (DisaggregatedRequest, "_end_prefill"),
    (DisaggregatedRequest, "on_head"),
    (DisaggregatedRequest, "on_finish"),
    (Scheduler, "first_token"),
    (RoutedRequest, "next_target"),
    (RoutedRequest, "on_finish"),
]


async def test_an_error_in_either_half_of_a_split_request_ends_both() -> None:
    async with pretend_engines("prefill", "decode") as mockers:
        workers = tuple(
            f"w{number}={one.url},role={one.options.role}" for number, one in enumerate(mockers)
        )
        cost = CostSettings(prefill_threshold=200)
        split = SplitSettings(prefill_split="always")
        async with door_to([], worker=workers, cost=cost, split=split) as door:
            door.model = "mock"
            wrong = await door.check_all(SPLIT, CHAT, "500", "abort", "whole")
            wrong += await door.check_all(SPLIT, STREAM, "500", "event", "abort", "whole")

    assert wrong == []


META: Points = [
    (BucketPlan, "__init__"),
    (BucketPlan, "next_target"),
    (BucketPlan, "on_head"),
    (BucketPlan, "on_finish"),
]


async def test_an_error_in_the_meta_router_ends_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, made = free_port(), 0
    init = BucketPlan.__init__

    def count(plan: BucketPlan, *args: Any) -> None:
        nonlocal made
        init(plan, *args)
        made += 1

    monkeypatch.setattr(BucketPlan, "__init__", count)
    http = HttpSettings(http_port=port, drain_s=1.0)
    async with failing_engines(1) as engines, door_to(engines) as behind:
        server = MetaServer(MetaRouterSettings(replica=(f"a={behind.url}",), http=http))
        async with serving(server.serve, f"http://127.0.0.1:{port}"):
            with looked_inside() as inside:
                door = Door(port, server._ends, lambda: made, inside)
                wrong = await door.check_all(META, CHAT, "500", "abort", "whole")
                wrong += await door.check_all(META, STREAM, "500", "event", "abort", "whole")

    assert wrong == []
