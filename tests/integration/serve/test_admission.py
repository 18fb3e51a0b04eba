"""Requests held at a router: late binding, bounds, comments, leaving, draining, changes."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.admission_share import AdmissionShare, reported_as
from kvmesh.app.router.command import RouterServer
from kvmesh.core.admission.sibling_counters import SharedLimits
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings, ProgramSettings, StreamSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings
from kvmesh.transport.http.server.limits import HttpLimits
from tests.conftest import Eventually
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import (
    chat,
    client_of,
    ended,
    free_port,
    router,
    router_process,
    serving,
)
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

LONG = "Some long prompt that takes its time. " * 300
ADMIN = "/admin/admission"
FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (192, 192))
from kvmesh.cli import main
main()
"""


@pytest.fixture
async def engine() -> AsyncIterator[GatedEngine]:
    async with gated_engine() as engine:
        yield engine


@pytest.fixture
async def held(engine: GatedEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A router that holds what its one worker cannot begin at once."""
    admission = AdmissionSettings(
        max_backlog_ms=100.0, busy_prefill_tokens=100, max_queued=2, max_queued_per_tenant=1
    )
    stream = StreamSettings(sse_comment_s=0.3)
    async with client_of(router([engine.url], admission=admission, stream=stream)) as client:
        yield client


async def statistics(client: httpx.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get(ADMIN)).json()["statistics"]
    return answer


async def until_queued(client: httpx.AsyncClient, count: int) -> None:
    await seen(client, ADMIN, lambda page: page["statistics"]["queued"] == count)


def asked(client: httpx.AsyncClient, name: str, **headers: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(chat(client, f"{name}: {LONG}", name, **headers))


async def cut_stream(client: httpx.AsyncClient, name: str, **headers: str) -> str:
    """Return what came of a stream that must end without its last chunk."""
    body = {"model": "mock", "stream": True, "messages": [{"role": "user", "content": LONG}]}
    names = {f"x-kvmesh-{one.replace('_', '-')}": value for one, value in headers.items()}
    parts: list[str] = []

    async def take() -> None:
        async with client.stream(
            "POST", "/v1/chat/completions", json=body, headers=names | {"x-request-id": name}
        ) as answer:
            assert answer.status_code == 200
            async for part in answer.aiter_text():
                parts.append(part)  # noqa: PERF401  what came before the cut is wanted, too

    with pytest.raises(httpx.RemoteProtocolError):
        await take()
    return "".join(parts)


async def test_a_request_waits_at_the_router_until_its_worker_can_begin(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.seen == ["first"])
    second = asked(held, "second")
    await until_queued(held, 1)
    overview = (await held.get("/v1/overview")).json()
    metrics = (await held.get("/metrics")).text
    assert engine.seen == ["first"]

    engine.let_go()
    await eventually(lambda: engine.seen == ["first", "second"])
    engine.let_go()
    answers = await asyncio.gather(first, second)
    rows = (await held.get("/v1/decisions")).json()["decisions"]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    assert overview["replicas"][0]["queued"] == overview["buckets"][0]["queued"] == 1
    assert "kvmesh_queue_requests 1.0" in metrics
    assert {row["request_id"]: row["held_ms"] > 0.0 for row in rows}["second"]
    end = await statistics(held)
    assert (end["queued"], end["released"], end["cancelled"]) == (0, 1, 0)
    assert end["waited_s"] > 0.0


async def test_a_queue_at_its_bounds_refuses_in_openais_shape(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    running = [asked(held, "first", tenant="a")]
    await eventually(lambda: engine.waiting == 1)
    running.append(asked(held, "second", tenant="a"))
    await until_queued(held, 1)

    greedy = await chat(held, LONG, "third", tenant="a")
    running.append(asked(held, "fourth", tenant="b"))
    await until_queued(held, 2)
    crowded = await chat(held, LONG, "fifth", tenant="c")

    assert (greedy.status_code, crowded.status_code) == (429, 503)
    error = greedy.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "tenant_queue_full")
    assert (error["request_id"], crowded.json()["error"]["code"]) == ("third", "queue_full")
    assert int(greedy.headers["retry-after"]) >= 1
    for number in range(3):
        await eventually(lambda number=number: len(engine.seen) > number)
        engine.let_go()
    assert [answer.status_code for answer in await asyncio.gather(*running)] == [200] * 3


async def test_a_client_that_leaves_the_queue_never_reaches_a_worker(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.waiting == 1)
    second = asked(held, "second")
    await until_queued(held, 1)

    second.cancel()
    await until_queued(held, 0)
    engine.let_go()
    await first

    assert engine.seen == ["first"]
    assert (await statistics(held))["cancelled"] == 1
    status = (await held.get("/v1/status")).json()
    assert status["requests"]["client_gone"] == 1


async def test_a_held_stream_gets_comments_and_its_end_as_an_event(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.waiting == 1)

    patient = asked(held, "patient", tenant="a")
    late = await cut_stream(held, "hasty", tenant="b", timeout_s="3")
    engine.let_go()
    await eventually(lambda: engine.waiting == 1)
    engine.let_go()
    answer = await patient
    await first

    assert re.match(r": waiting, about 1 s, at most 30 s\n\n: waiting, about \d+ s, at", late)
    assert '"code":"deadline"' in late.splitlines()[-2]
    assert answer.text.startswith(": waiting, about 1 s, at most 30 s\n\n")
    assert answer.headers["x-kvmesh-wait-s"] == "30"
    assert "\n: x-kvmesh-worker: w0\n: x-kvmesh-" in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_whole_answer_is_refused_before_its_client_gives_up(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.waiting == 1)

    body = {"model": "mock", "messages": [{"role": "user", "content": LONG}]}
    headers = {"x-stainless-timeout": "1e25", "x-stainless-read-timeout": "2"}
    late = await held.post("/v1/chat/completions", json=body, headers=headers, timeout=2.0)
    engine.let_go()
    await first

    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
    assert int(late.headers["retry-after"]) >= 1


async def test_the_openai_client_reads_on_behind_the_comments(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.waiting == 1)
    async with AsyncOpenAI(base_url=f"{held.base_url}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": LONG}], stream=True
        )
        assert engine.seen == ["first"]
        engine.let_go()
        await eventually(lambda: engine.waiting == 1)
        engine.let_go()
        chunks = [chunk async for chunk in stream]
    await first

    assert [chunk.choices[0].delta.content for chunk in chunks] == ["a"]


async def test_bounds_change_while_the_router_runs(
    held: httpx.AsyncClient, engine: GatedEngine, eventually: Eventually
) -> None:
    first = asked(held, "first")
    await eventually(lambda: engine.waiting == 1)
    second = asked(held, "second")
    await until_queued(held, 1)

    changed = await held.put(ADMIN, json={"max_backlog_ms": 0, "busy_prefill_tokens": 20000})
    await eventually(lambda: engine.waiting == 2)
    busy = await chat(held, LONG, "third")
    wrong = [
        await held.put(ADMIN, json={"max_queued": 0}),
        await held.put(ADMIN, json={"max_backlog": 10}),
        await held.put(ADMIN, json={"queue_policy": "lifo"}),
        await held.put(ADMIN, json={"max_wait_s": 0}),
        await held.put(ADMIN, json={"max_queued": 5}, headers={"x-forwarded-for": "10.0.0.1"}),
    ]
    engine.let_go()
    engine.let_go()
    await asyncio.gather(first, second)

    assert changed.json()["limits"]["max_backlog_ms"] == 0.0
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert "prefill tokens queued" in busy.json()["error"]["message"]
    assert [answer.status_code for answer in wrong] == [400, 400, 400, 400, 403]
    assert "max_queued is 0: use a number >= 1" in wrong[0].json()["error"]["message"]
    assert '"max_backlog_ms":' in wrong[1].json()["error"]["message"]
    assert "one of fcfs, wspt, priority" in wrong[2].json()["error"]["message"]
    assert (await held.get(ADMIN)).json()["limits"]["max_queued"] == 2


async def test_a_token_guards_the_bounds(engine: GatedEngine, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with (
        client_of(
            router([engine.url], admission=AdmissionSettings(admin_token_file=file))
        ) as client,
    ):
        without = await client.put(ADMIN, json={"max_queued": 5})
        wrong = await client.put(
            ADMIN, json={"max_queued": 5}, headers={"authorization": "Bearer secret2"}
        )
        right = await client.put(
            ADMIN, json={"max_queued": 5}, headers={"authorization": "Bearer secret"}
        )

        beside = await client.put(
            ADMIN, json={"max_queued": 5}, headers={"x-kvmesh-admin-token": "secret"}
        )

    assert [answer.status_code for answer in (without, wrong)] == [401, 401]
    assert [answer.status_code for answer in (right, beside)] == [200, 200]
    assert right.json()["limits"]["max_queued"] == 5


async def test_on_sigterm_the_held_go_in_turn_and_the_last_are_sent_elsewhere(
    engine: GatedEngine, eventually: Eventually
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fixed_flags", "router", "--no-kv-events"),
        f"--worker=w0={engine.url}",
        *("--http-port=0", "--max-backlog-ms=100", "--busy-prefill-tokens=100"),
        "--drain-s=4",
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    found = None
    while found is None:
        line = (await process.stderr.readline()).decode()
        assert line, "the router ended before it served"
        found = re.search(
            r'"router serves".*"url": "([^"]+)"|"url": "([^"]+)".*router serves', line
        )
    url = found.group(1) or found.group(2)
    async with ended(process), httpx.AsyncClient(base_url=url, timeout=60) as client:
        first = asked(client, "first")
        await eventually(lambda: engine.waiting == 1)
        second = asked(client, "second")
        await until_queued(client, 1)
        body = {"model": "mock", "messages": [{"role": "user", "content": LONG}]}
        third = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await until_queued(client, 2)

        process.terminate()
        await asyncio.sleep(0.2)
        engine.let_go()
        await eventually(lambda: len(engine.seen) == 2)
        refused = await third
        engine.let_go()
        answers = await asyncio.gather(first, second)
        _, rest = await process.communicate()

    assert process.returncode == 0, rest.decode()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_timeout")
    assert "shutting down" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1


async def test_connections_and_heads_are_bounded_as_set(engine: GatedEngine) -> None:
    port = free_port()
    http = HttpSettings(http_port=port, limits=HttpLimits(max_connections=2, max_header_bytes=2000))
    server = RouterServer(
        RouterSettings(kv_events=False, worker=(f"w0={engine.url}",), http=http, seed=1)
    )
    async with (
        serving(server.serve, f"http://127.0.0.1:{port}") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        httpx.AsyncClient(base_url=url, timeout=60) as second,
        httpx.AsyncClient(base_url=url, timeout=60) as third,
    ):
        large = await client.get("/health", headers={"x-large": "x" * 3000})
        fine = await client.get("/health")
        other = await second.get("/health")
        crowded = await third.get("/health")

    assert (large.status_code, fine.status_code, other.status_code) == (431, 200, 200)
    assert crowded.status_code == 503
    assert crowded.headers["retry-after"] == "1"


async def test_with_few_open_files_those_that_come_in_are_served_and_others_told_to_wait(
    engine: GatedEngine, eventually: Eventually
) -> None:
    arguments = ("--no-kv-events", "--worker", f"w0={engine.url}")
    many = httpx.Limits(max_connections=None)
    async with (
        router_process(*arguments, command=("-c", FEW_FILES)) as client,
        httpx.AsyncClient(base_url=client.base_url, timeout=60, limits=many) as crowd,
    ):
        tasks = [asyncio.create_task(chat(crowd, "hello", f"q{number}")) for number in range(45)]
        await eventually(lambda: engine.waiting + sum(task.done() for task in tasks) == 45)
        served = engine.waiting
        for _ in range(served):
            engine.let_go()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

    # A refusal is waited for two seconds; a starved client may then find a reset.
    reported = [answer for answer in answers if isinstance(answer, httpx.Response)]
    assert served == (192 - 128) // 2
    assert sorted({answer.status_code for answer in reported}) == [200, 503]
    assert sum(answer.status_code == 200 for answer in reported) == served
    assert all(isinstance(one, httpx.TransportError) for one in answers if one not in reported)


async def test_bounds_changed_at_one_replica_are_taken_by_all_of_its_bucket(
    engine: GatedEngine, nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)

    async def limits(client: httpx.AsyncClient, *, queued: int) -> Any:
        return await seen(client, ADMIN, lambda page: page["limits"]["max_queued"] == queued)

    async with contextlib.AsyncExitStack() as stack:

        async def replica(name: str) -> httpx.AsyncClient:
            serving = router([engine.url], router_id=name, nats=nats)
            url = await stack.enter_async_context(serving)
            return await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))

        first, second = await replica("r1"), await replica("r2")
        await first.put(ADMIN, json={"max_queued": 7, "busy_prefill_tokens": 9})
        taken = await limits(second, queued=7)
        await second.put(ADMIN, json={"max_queued": 8})
        back = await limits(first, queued=8)
        late = await limits(await replica("r3"), queued=8)

    assert taken["limits"]["busy_prefill_tokens"] == 9
    assert back["limits"]["busy_prefill_tokens"] == 9
    assert taken["replicas"] == ["r1", "r2"]
    assert "r3" in late["replicas"]


async def test_bounds_of_a_sibling_that_cannot_be_are_refused(engine: GatedEngine) -> None:
    server = RouterServer(RouterSettings(kv_events=False, worker=(engine.url,), router_id="r1"))
    context = server._context()
    reported = SharedLimits(1.0, "r2", {"max_queued": 0})
    beat = RouterHeartbeat("r2", "default", "http://r2", ready=True, epoch=1, admission=reported)
    share = AdmissionShare(context.gate, server.router, "r1", lambda: (beat,))
    before = context.gate.limits

    share.adopt()
    share.adopt()

    assert context.gate.limits == before
    assert server.router.admission == SharedLimits()


async def test_what_an_older_sibling_does_not_tell_stays_as_it_is_here(engine: GatedEngine) -> None:
    server = RouterServer(
        RouterSettings(
            kv_events=False,
            worker=(engine.url,),
            router_id="r1",
            program=ProgramSettings(program_turns="off"),
        )
    )
    context = server._context()
    theirs = reported_as(msgspec.structs.replace(context.gate.limits, max_queued=8), frozenset())
    reported = SharedLimits(1.0, "r2", theirs)
    beat = RouterHeartbeat("r2", "default", "http://r2", ready=True, epoch=1, admission=reported)
    share = AdmissionShare(context.gate, server.router, "r1", lambda: (beat,))

    share.adopt()
    adopted = context.gate.limits
    share.change(msgspec.structs.replace(adopted, max_queued=9))
    untold = server.router.admission.limits
    share.change(msgspec.structs.replace(adopted, program_turns="observe"))

    assert (adopted.max_queued, adopted.program_turns) == (8, "off")
    assert not {"program_turns", "program_wait_s"} & untold.keys()
    assert server.router.admission.limits["program_turns"] == "observe"
    assert "program_wait_s" not in server.router.admission.limits


async def test_bounds_refused_of_one_sibling_keep_out_no_others(engine: GatedEngine) -> None:
    """Of an hour that no clock shows, they were the latest for ever."""
    server = RouterServer(RouterSettings(kv_events=False, worker=(engine.url,), router_id="r1"))
    context = server._context()
    wrong = SharedLimits(1e12, "r2", reported_as(context.gate.limits))
    limits = msgspec.structs.replace(context.gate.limits, max_queued=8)
    good = SharedLimits(2.0, "r3", reported_as(limits))
    beats = [
        RouterHeartbeat(one.by, "default", "http://r", ready=True, epoch=1, admission=one)
        for one in (wrong, good)
    ]
    share = AdmissionShare(context.gate, server.router, "r1", lambda: tuple(beats))

    for _ in range(3):
        share.adopt()

    assert context.gate.limits.max_queued == 8


async def test_tenants_shares_are_shown_only_to_who_may_change_bounds(
    engine: GatedEngine, eventually: Eventually
) -> None:
    admission = AdmissionSettings(
        max_backlog_ms=100.0, busy_prefill_tokens=100, queue_fairness="locality"
    )
    async with client_of(router([engine.url], admission=admission)) as client:
        first = asked(client, "first", tenant="a")
        await eventually(lambda: engine.seen == ["first"])
        second = asked(client, "second", tenant="b")
        await until_queued(client, 1)

        mine = (await client.get(ADMIN)).json()["tenants"]
        others = await client.get(ADMIN, headers={"x-forwarded-for": "192.0.2.7"})

        assert [(one["tenant"], one["waiting"]) for one in mine] == [("b", 1), ("a", 0)]
        assert mine[1]["service"] > 1000
        assert others.json()["tenants"] == []
        changed = await client.put(ADMIN, json={"queue_fairness": "tokens"})
        wrong = await client.put(ADMIN, json={"queue_fairness": "lifo"})
        engine.let_go()
        await eventually(lambda: engine.seen == ["first", "second"])
        engine.let_go()
        answers = await asyncio.gather(first, second)

    assert [one.status_code for one in answers] == [200, 200]
    assert changed.json()["limits"]["queue_fairness"] == "tokens"
    assert "queue_fairness of tokens, locality" in wrong.json()["error"]["message"]
