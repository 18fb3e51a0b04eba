"""What passes through the proxy, and what happens when either side fails."""

import asyncio
import json
import socket

import pytest

from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.answer_check import AnswerCheck
from kvmesh.transport.http.forward.passed_answer import MAX_SCANNED_BYTES
from kvmesh.transport.http.forward.plan import (
    GROW_TOKENS,
    MOST_REFUSED,
    WAIT,
    ForwardOptions,
    Target,
)
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamOptions
from kvmesh.transport.http.wire.deadlines import ForwardClock
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem
from tests.conftest import Eventually
from tests.integration.http.peers import (
    Client,
    Front,
    Turn,
    Upstream,
    answer,
    chunked,
    sends,
)
from tests.integration.http.proxied import Proxy
from tests.integration.support.waiting import until
from tests.unit.transport.http.malformed import get, post

pytestmark = pytest.mark.integration

GET = get(b"Host: front")
POST = post(b"Content-Length: 4", body=b"body")
EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(5)] + [b"data: [DONE]\n\n"]


@pytest.fixture
async def client(fronts: Front, proxy: Proxy) -> Client:
    return await fronts.connect(proxy.server)


@pytest.fixture
def dead() -> str:
    """An origin where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


def error_of(body: bytes) -> dict[str, object]:
    error: dict[str, object] = json.loads(body)["error"]
    return error


async def test_a_request_and_its_answer_pass_but_for_headers_of_one_hop(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    upstream.script = sends(
        answer(
            b'{"a": 1}',
            b"Content-Type: application/json",
            b"Set-Cookie: a",
            b"Set-Cookie: b",
            b"Keep-Alive: timeout=5",
            b"Date: yesterday",
            b"X-Request-Id: theirs",
            status=b"418 Teapot",
        )
    )
    plan = proxy.plan()
    got = await client.ask(
        b"POST /v1/x?y=%20z HTTP/1.1\r\nHost: front\r\nAuthorization: Bearer t\r\nTE: trailers\r\n"
        b"Connection: keep-alive, x-gone\r\nX-Gone: 1\r\nExpect: 100-continue\r\n"
        b"Accept-Encoding: gzip\r\nX-Request-Id: mine\r\nContent-Length: 4\r\n\r\nbody"
    )

    (turn,) = upstream.turns
    assert turn.head == (
        b"POST /v1/x?y=%%20z HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer t\r\n"
        b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-proto: http\r\nx-forwarded-host: front\r\n"
        b"x-request-id: mine\r\ncontent-length: 4\r\n\r\n" % upstream.port
    )
    assert turn.body == b"body"
    assert (got.status, got.body) == (418, b'{"a": 1}')
    assert got.headers[b"x-request-id"] == b"mine"
    assert got.headers[b"x-kvmesh-worker"] == b"w1"
    assert got.headers[b"content-length"] == b"8"
    assert b"keep-alive" not in got.headers
    assert got.headers[b"date"] != b"yesterday"
    outcome = await plan.outcome()
    assert (outcome.kind, outcome.status, outcome.attempts) == ("finished", 418, 1)
    assert plan.tokens == []


async def test_a_target_may_change_path_body_and_headers(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    headers = ((b"x-data-parallel-rank", b"1"),)
    proxy.plan(Target(upstream.origin, path=b"/other", headers=headers, body=b"new"))

    await client.ask(post(b"X-Data-Parallel-Rank: 7", b"Content-Length: 1", body=b"x"))

    (turn,) = upstream.turns
    assert turn.head.startswith(b"POST /other HTTP/1.1\r\n")
    assert turn.head.count(b"x-data-parallel-rank: ") == 1
    assert b"x-data-parallel-rank: 1\r\n" in turn.head
    assert turn.body == b"new"


async def test_a_stream_passes_byte_by_byte_the_same_however_it_is_cut(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    whole = chunked(*EVENTS)

    async def script(turn: Turn) -> None:
        step = len(upstream.turns)
        for start in range(0, len(whole), step):
            turn.send(whole[start : start + step])
            await asyncio.sleep(0)
            await turn.writer.drain()

    upstream.script = script
    for _ in range(12):
        got = await client.ask(POST)

        assert (got.body, got.whole) == (b"".join(EVENTS), True)
        assert got.headers[b"content-type"] == b"text/event-stream"
        assert got.headers[b"x-accel-buffering"] == b"no"
        assert proxy.used[-1].tokens[0] in range(1, len(EVENTS))


async def test_a_stream_through_two_proxies_says_once_that_it_is_not_to_be_buffered(
    client: Client, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        head = chunked(*EVENTS).partition(b"\r\n")
        turn.send(head[0] + b"\r\nX-Accel-Buffering: no\r\n" + head[2])

    upstream.script = script
    client.send(POST)
    text = await client.until(b"\r\n\r\n")

    assert text.count(b"x-accel-buffering: no\r\n") == 1


async def test_each_event_is_passed_on_as_soon_as_it_is_whole(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    step = asyncio.Event()

    async def script(turn: Turn) -> None:
        turn.send(chunked(end=False))
        for event in EVENTS:
            turn.send(b"%x\r\n%b\r\n" % (len(event), event))
            await step.wait()
            step.clear()
        turn.send(b"0\r\n\r\n")

    upstream.script = script
    client.send(POST)
    await client.until(b"\r\n\r\n")
    for event in EVENTS:
        assert (await client.until(event)).endswith(event)
        step.set()
    assert await client.until(b"0\r\n\r\n")
    assert proxy.used[0].tokens == [1, 5]  # the last, since no usage was reported


async def test_a_plan_is_told_of_the_first_token_and_then_now_and_again(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    step = asyncio.Event()
    tokens = [b'data: {"n":%d}\n\n' % number for number in range(2 * GROW_TOKENS + 2)]
    usage = b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'

    async def script(turn: Turn) -> None:
        turn.send(chunked(end=False))
        for event in (*tokens, usage):
            turn.send(b"%x\r\n%b\r\n" % (len(event), event))
            await step.wait()
            step.clear()
        turn.send(b"0\r\n\r\n")

    upstream.script = script
    client.send(POST)
    for event in (*tokens, usage):
        await client.until(event)
        step.set()
    await client.until(b"0\r\n\r\n")

    assert proxy.used[0].tokens == [1, 1 + GROW_TOKENS, 1 + 2 * GROW_TOKENS]
    assert proxy.forwards[0].usage() == Usage(7, 1)


async def test_a_plan_is_told_of_tokens_that_were_held_to_their_end(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    """A completion of one token says with it why it ended."""
    event = b'data: {"model":"m","choices":[{"text":"a","finish_reason":"length"}]}\n\n'

    upstream.script = sends(chunked(event, b"data: [DONE]\n\n"))
    proxy.options = ForwardOptions(form="completions")
    plan = proxy.plan(Target(upstream.origin, check=AnswerCheck(["m"])))
    got = await client.ask(POST)

    assert got.body == event + b"data: [DONE]\n\n"
    assert plan.tokens == [1]


@pytest.mark.parametrize(
    ("more", "reads_usage", "usage"),
    [(0, True, Usage(7)), (MAX_SCANNED_BYTES, True, None), (0, False, None)],
)
async def test_a_whole_answer_tells_its_usage_if_it_is_not_too_long(
    more: int,
    reads_usage: bool,
    usage: Usage | None,
    proxy: Proxy,
    client: Client,
    upstream: Upstream,
) -> None:
    proxy.options = ForwardOptions(reads_usage=reads_usage)
    body = b'{"usage":{"prompt_tokens":7}}' + b" " * more

    upstream.script = sends(answer(body))

    got = await client.ask(POST)

    assert got.body == body
    assert proxy.used[0].tokens == []
    assert proxy.forwards[0].usage() == usage


async def test_a_stream_begins_with_its_first_event(client: Client, upstream: Upstream) -> None:
    upstream.script = sends(chunked(EVENTS[0], end=False), then=Turn.gone)
    client.send(POST)

    assert b"text/event-stream" in await client.until(EVENTS[0])


@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"200 OK"])
async def test_answers_without_bodies_stay_without(
    method: bytes, status: bytes, client: Client, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        length = b"Content-Length: 5\r\n" if status == b"200 OK" else b""
        turn.send(b"HTTP/1.1 %b\r\n%b\r\n" % (status, length))
        if length and method == b"GET":
            turn.send(b"12345")

    upstream.script = script
    for _ in range(3):
        client.send(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
        got = await client.answer(bodiless=method == b"HEAD")

        assert got.status == int(status[:3])
        assert got.body == (b"12345" if (method, status[:3]) == (b"GET", b"200") else b"")


async def test_a_dead_worker_is_left_for_the_next(
    proxy: Proxy, client: Client, upstream: Upstream, dead: str
) -> None:
    plan = proxy.plan(Target(dead), Target(dead), Target(upstream.origin))

    got = await client.ask(POST)

    assert got.status == 200
    outcome = await plan.outcome()
    assert (outcome.kind, outcome.attempts) == ("finished", 3)
    assert [failure.stage for failure in plan.failures] == ["before_send"] * 2
    assert upstream.turns[0].body == b"body"


async def test_no_more_is_tried_than_the_options_allow(
    proxy: Proxy, client: Client, upstream: Upstream, dead: str
) -> None:
    """Upstreams that refuse the connection do not count, up to a bound."""
    most = MOST_REFUSED + 1 + proxy.options.max_retries
    plan = proxy.plan(*[Target(dead)] * most, Target(upstream.origin))

    got = await client.ask(POST)

    assert got.status == 502
    assert error_of(got.body)["code"] == "upstream_refused"
    assert error_of(got.body)["request_id"] == got.headers[b"x-request-id"].decode()
    outcome = await plan.outcome()
    assert (outcome.kind, outcome.status, outcome.attempts) == ("failed", 502, most)
    assert outcome.failure is not None
    assert upstream.turns == []


async def test_the_plan_may_forbid_another_attempt(
    proxy: Proxy, client: Client, upstream: Upstream, dead: str
) -> None:
    proxy.plan(Target(dead), Target(upstream.origin), allow=False)

    assert (await client.ask(POST)).status == 502
    assert upstream.turns == []


async def test_a_request_that_killed_two_workers_is_not_given_a_third(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    upstream.script = sends(then=Turn.reset)
    plan = proxy.plan(*[Target(upstream.origin)] * 3)

    got = await client.ask(POST)

    assert got.status == 502
    assert error_of(got.body)["code"] == "upstream_reset"
    assert len(upstream.turns) == 2
    assert (await plan.outcome()).attempts == 2


async def test_a_clients_retries_of_a_deadly_request_end_no_further_workers(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        if turn.body == b"deadly":
            turn.reset()
        else:
            turn.send(answer(b"fine"))

    upstream.script = script
    deadly = post(b"Content-Length: 6", body=b"deadly")
    other_name = upstream.origin.replace("127.0.0.1", "localhost")
    for _ in range(3):
        proxy.plan(Target(upstream.origin), Target(other_name))

    answers = [await client.ask(deadly)]
    for origin in (upstream.origin, other_name):
        proxy.pool.poison.gone(origin, asyncio.get_running_loop().time())
    answers += [await client.ask(deadly) for _ in range(2)]
    other = await client.ask(POST)

    assert [got.status for got in answers] == [502, 422, 422]
    assert error_of(answers[1].body)["code"] == "poison"
    assert sum(turn.body == b"deadly" for turn in upstream.turns) == 2
    assert (await proxy.used[1].outcome()).kind == "refused"
    assert other.body == b"fine"
    assert proxy.pool.poison.refused == 2


async def test_a_worker_that_dies_unanswered_is_left_for_another_once(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        if len(upstream.turns) == 1:
            turn.send(b"HTTP/1.1 200 O")
            turn.close()
        else:
            turn.send(answer(b"fine"))

    upstream.script = script
    proxy.plan(*[Target(upstream.origin)] * 3)

    assert (await client.ask(POST)).body == b"fine"


async def test_a_worker_that_is_busy_is_left_for_another_and_the_last_answer_passed_on(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        status = b"200 OK" if len(upstream.turns) == 2 else b"503 Busy"
        turn.send(answer(b"%d" % len(upstream.turns), b"Retry-After: 7", status=status))

    upstream.script = script
    proxy.plan(Target(upstream.origin), Target(upstream.origin))
    only = proxy.plan(Target(upstream.origin))
    refusing = proxy.plan(Target(upstream.origin), Problem(429, "enough", retry_after_s=2))

    moved, last, refused = [await client.ask(POST) for _ in range(3)]

    assert (moved.status, moved.body) == (200, b"2")
    assert (last.status, last.body, last.headers[b"retry-after"]) == (503, b"3", b"7")
    assert (await only.outcome()).kind == "finished"
    assert (refused.status, refused.headers[b"retry-after"]) == (429, b"2")
    assert (await refusing.outcome()).kind == "refused"


async def test_a_silent_worker_is_a_timeout_and_nobody_else_is_asked(
    proxy: Proxy, client: Client, upstream: Upstream, fronts: Front
) -> None:
    await proxy.start(fronts, upstreams=UpstreamOptions(first_byte_timeout_s=0.3))
    client = await fronts.connect(proxy.server)

    upstream.script = Turn.gone
    plan = proxy.plan(*[Target(upstream.origin)] * 3)

    got = await client.ask(POST)

    assert (got.status, error_of(got.body)["code"]) == (504, "upstream_timeout")
    assert (await plan.outcome()).attempts == 1


async def test_a_plan_without_a_worker_is_answered_for(proxy: Proxy, client: Client) -> None:
    nobody = proxy.plan(None)
    refused = proxy.plan(Problem(404, "no such model", code="model_not_found", param="model"))

    first, second = await client.ask(POST), await client.ask(POST)

    assert (first.status, first.headers[b"retry-after"]) == (503, b"1")
    assert (second.status, error_of(second.body)["param"]) == (404, "model")
    assert (await nobody.outcome()).kind == "failed"
    assert (await refused.outcome()).kind == "refused"


async def test_a_target_that_is_no_url_is_a_failed_attempt(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    plan = proxy.plan(Target("tcp://x"), Target(upstream.origin, headers=((b"a", b"b\r\n"),)))

    assert (await client.ask(POST)).status == 502
    assert len(plan.failures) == 2


async def test_a_plan_may_wait_for_a_worker(
    proxy: Proxy, client: Client, upstream: Upstream, eventually: Eventually
) -> None:
    plan = proxy.plan(WAIT, WAIT, Target(upstream.origin))
    client.send(POST)
    await eventually(lambda: proxy.forwards)

    proxy.forwards[0].proceed()
    assert upstream.turns == []
    proxy.forwards[0].proceed()

    assert (await client.answer()).status == 200
    assert (await plan.outcome()).kind == "finished"
    proxy.forwards[0].proceed()
    assert len(upstream.turns) == 1


async def test_a_client_that_leaves_while_its_plan_waits_ends_it(
    proxy: Proxy, client: Client, eventually: Eventually
) -> None:
    plan = proxy.plan(WAIT)
    client.send(POST)
    await eventually(lambda: proxy.forwards)

    client.close()

    assert (await plan.outcome()).kind == "client_gone"
    proxy.forwards[0].proceed()


async def test_a_request_that_takes_too_long_is_answered_or_cut(
    proxy: Proxy, client: Client, upstream: Upstream, dead: str
) -> None:
    proxy.options = ForwardOptions(deadline_s=0.3)

    async def script(turn: Turn) -> None:
        if len(upstream.turns) == 2:
            turn.send(chunked(EVENTS[0], end=False))
        await turn.gone()

    upstream.script = script
    late, cut = proxy.plan(Target(dead), Target(upstream.origin)), proxy.plan()

    answered = await client.ask(POST)
    streamed = await client.ask(POST)

    assert (answered.status, error_of(answered.body)["code"]) == (504, "deadline")
    assert streamed.body.startswith(EVENTS[0])
    assert b'"deadline"' in streamed.body
    assert not streamed.whole
    ended = await late.outcome()
    assert (ended.kind, ended.failure) == ("failed", None), "the deadline is no worker's doing"
    assert (await cut.outcome()).kind == "cut"
    clocks = [one for spoke in proxy.pool.wheel._spokes for one in spoke]
    assert not any(isinstance(one, ForwardClock) for one in clocks)


async def test_an_attempt_whose_answer_has_begun_is_not_given_up(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    begun = asyncio.Event()

    async def script(turn: Turn) -> None:
        turn.send(chunked(EVENTS[0], end=False))
        await begun.wait()
        turn.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENTS[1]), EVENTS[1]))

    upstream.script = script
    plan = proxy.plan()
    asking = asyncio.create_task(client.ask(POST))
    await until(lambda: plan.heads)

    [forwarding] = proxy.forwards
    forwarding.fail_attempt(UpstreamFailure("after_send", "hung", "hung", upstream.origin))
    begun.set()

    assert (await asking).body == b"".join(EVENTS[:2])
    assert (await plan.outcome()).kind == "finished"


async def comments_to(client: Client, count: int) -> None:
    """Wait, as an engine that thinks, until its client got so many comments."""
    await until(lambda: client.received.count(b": waiting\n\n") >= count)


async def test_a_waiting_stream_gets_comments_until_its_first_event(
    proxy: Proxy, client: Client, upstream: Upstream, dead: str
) -> None:
    proxy.options = ForwardOptions(comments_s=0.1)
    proxy.stream = True

    async def script(turn: Turn) -> None:
        await comments_to(client, 2)
        turn.send(chunked(*EVENTS))

    upstream.script = script
    proxy.plan(Target(dead), Target(upstream.origin))

    got = await client.ask(POST)

    comments, _, events = got.body.partition(b"data: ")
    assert comments.count(b": waiting\n\n") >= 2
    assert comments.replace(b": waiting\n\n", b"") == b": x-kvmesh-worker: w1\n\n"
    assert b"data: " + events == b"".join(EVENTS)
    assert (got.status, got.whole) == (200, True)
    assert got.headers[b"content-type"] == b"text/event-stream"


@pytest.mark.parametrize(
    ("added", "reported"),
    [
        ((), b"worker: w7\n: x-kvmesh-overlap-blocks: 3"),
        (((b"x-kvmesh-worker", b"w1"), (b"x-other", b"o")), b"worker: w1"),
    ],
)
async def test_headers_behind_comments_are_told_as_comments_those_of_the_router_before_the_engines(
    added: Headers, reported: bytes, proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    proxy.options = ForwardOptions(comments_s=0.1)
    proxy.stream = True
    own = b"x-kvmesh-worker: w7\r\nx-kvmesh-overlap-blocks: 3\r\nserver: engine\r\n"

    async def script(turn: Turn) -> None:
        await comments_to(client, 1)
        turn.send(chunked(*EVENTS).replace(b"\r\n", b"\r\n" + own, 1))

    upstream.script = script
    proxy.plan(Target(upstream.origin)).added = added

    got = await client.ask(POST)

    comments, _, events = got.body.partition(b": x-kvmesh-")
    received, _, events = events.partition(b"\n\n")
    assert comments.replace(b": waiting\n\n", b"") == b""
    assert received == reported
    assert events == b"".join(EVENTS)
    assert b"x-kvmesh-worker" not in got.headers


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b'{"error":\n{"message":"bad"}}', b'{"error": {"message":"bad"}}\n\n'),
        (b"", b"upstream failed"),
        (b"x" * 70_000, b"upstream failed"),
    ],
)
async def test_an_error_behind_comments_is_told_as_an_event(
    body: bytes, reported: bytes, proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    proxy.options = ForwardOptions(comments_s=0.1)
    proxy.stream = True

    async def script(turn: Turn) -> None:
        await comments_to(client, 1)
        turn.send(answer(body, status=b"400 Bad Request"))

    upstream.script = script

    got = await client.ask(POST)

    comments, _, event = got.body.partition(b"data: ")
    assert comments
    assert b'"message":' in event
    assert reported in event
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert not got.whole


async def test_a_failure_behind_comments_is_told_as_an_event(
    proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    proxy.options = ForwardOptions(comments_s=0.1)
    proxy.stream = True

    async def script(turn: Turn) -> None:
        await comments_to(client, 1)
        turn.reset()

    upstream.script = script
    plan = proxy.plan()

    got = await client.ask(POST)

    assert b'data: {"error":' in got.body
    assert not got.whole
    assert (await plan.outcome()).kind == "failed"


async def test_pipelined_requests_are_forwarded_in_turn(client: Client, upstream: Upstream) -> None:
    async def script(turn: Turn) -> None:
        await asyncio.sleep(0.02 if len(upstream.turns) == 1 else 0)
        turn.send(answer(turn.body))

    upstream.script = script
    client.send(b"".join(post(b"Content-Length: 1", body=b"%d" % number) for number in range(5)))

    assert [(await client.answer()).body for _ in range(5)] == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize("error", [b"", b'data: {"error":{"code":"queue_timeout"}}\n\n'])
async def test_a_router_that_lets_down_a_stream_that_it_holds_is_left_for_another(
    error: bytes, proxy: Proxy, client: Client, upstream: Upstream
) -> None:
    proxy.options = ForwardOptions(blameless=True, adopts_id=True)
    proxy.stream = True
    sign = b": waiting, at most 9 s\n\n"

    async def script(turn: Turn) -> None:
        first = len(upstream.turns) == 1
        answer = chunked(sign, end=False) if first else chunked(*EVENTS)
        own = b"x-request-id: q%d\r\nx-kvmesh-router: r%d\r\n" % (2 * (len(upstream.turns),))
        turn.send(answer.replace(b"\r\n", b"\r\n" + own, 1))
        await until(lambda: sign in client.received)
        if first and error:
            turn.send(b"%x\r\n%b\r\n" % (len(error), error))
        elif first:
            turn.reset()

    upstream.script = script
    plan = proxy.plan(Target(upstream.origin), Target(upstream.origin))
    plan.added = ()

    got = await client.ask(POST)

    assert got.headers[b"x-kvmesh-router"] == b"r1"
    assert got.headers[b"x-request-id"] == b"q1"
    assert got.body == b"".join((sign, b": x-kvmesh-router: r2\n\n", *EVENTS))
    assert got.whole
    assert (plan.heads, (await plan.outcome()).attempts) == ([200], 2)
