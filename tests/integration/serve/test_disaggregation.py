"""Prefill and decode on two workers, through engines that refuse a wrong handshake."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.mocker.command import Mocker, MockerOptions
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings, WorkerSettings
from tests.conftest import Eventually
from tests.integration.serve.test_closed_loop import running
from tests.integration.support.live_router import free_port, router
from tests.nats_container import Served

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 30
THRESHOLD = 200


@contextlib.asynccontextmanager
async def engines(*roles: str) -> AsyncIterator[list[Mocker]]:
    async with contextlib.AsyncExitStack() as stack:
        mockers = []
        for role in roles:
            options = MockerOptions(
                port=0,
                kv_events_port=0,
                replay_port=0,
                timing_profile="instant",
                role=role,  # type: ignore[arg-type]  # one of three
            )
            mockers.append(Mocker(options))
            await mockers[-1].start()
            stack.push_async_callback(mockers[-1].stop)
        yield mockers


@contextlib.asynccontextmanager
async def routed(
    mockers: Sequence[Mocker], *urls: str, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router over them, called w0, w1, …"""
    workers = [f"{one.url},role={one.options.role}" for one in mockers] + list(urls)
    cost = CostSettings(prefill_threshold=THRESHOLD)
    async with (
        router(workers, kv_events=True, cost=cost, parity_sample=0, **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield client


async def chat(client: httpx.AsyncClient, text: str, **more: Any) -> httpx.Response:
    message = {"role": "user", "content": text}
    body = {"model": "mock", "max_tokens": 4, "messages": [message]} | more
    return await client.post("/v1/chat/completions", json=body)


def workers_of(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-kvmesh-prefill-worker", ""), answer.headers["x-kvmesh-worker"]


async def until_idle(client: httpx.AsyncClient) -> None:
    """Wait until nothing is booked anywhere."""
    deadline = asyncio.get_running_loop().time() + 60.0
    while True:
        workers = (await client.get("/v1/status")).json()["workers"]
        loads = [one["active_requests"] + one["prefill_tokens"] for one in workers]
        if not any(loads):
            return
        assert asyncio.get_running_loop().time() < deadline, loads
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_prompt_is_prefilled_on_one_worker_and_decoded_on_another(
    stream: bool,
) -> None:
    async with engines("prefill", "decode") as mockers, routed(mockers) as client:
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = await chat(client, PROMPT, **options)
        prompt = await client.post(
            "/v1/completions", json={"model": "mock", "prompt": PROMPT + "?", "max_tokens": 3}
        )
        await until_idle(client)

    assert workers_of(answer) == workers_of(prompt) == ("w0", "w1")
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"completion_tokens":4' in answer.text
    else:
        assert answer.json()["usage"]["completion_tokens"] == 4
    assert prompt.json()["usage"]["completion_tokens"] == 3


async def test_little_left_to_prefill_goes_straight_to_decode() -> None:
    async with engines("prefill", "decode") as mockers, routed(mockers) as client:
        short = await chat(client, "Hello?")
        first = await chat(client, PROMPT)
        # The decode worker holds the prompt now: only the new words are left.
        follow = await chat(client, PROMPT + "And then?")
        several = await chat(client, "x" + PROMPT, n=2)

    assert workers_of(short) == ("", "w1")
    assert workers_of(first) == ("w0", "w1")
    assert workers_of(follow) == ("", "w1")
    assert workers_of(several) == ("", "w1")


async def test_a_prefill_that_fails_is_tried_elsewhere_or_done_without() -> None:
    async with (
        engines("prefill", "prefill", "decode") as mockers,
        routed(mockers) as client,
    ):
        before = await chat(client, "a" + PROMPT)
        used = int(workers_of(before)[0].removeprefix("w"))
        await mockers[used].stop()
        others = [await chat(client, f"{number}" + PROMPT) for number in range(4)]
        await mockers[1 - used].stop()
        alone = await chat(client, "b" + PROMPT)
        await until_idle(client)

    assert {workers_of(one) for one in others} == {(f"w{1 - used}", "w2")}
    assert workers_of(alone) == ("", "w2")


async def test_a_client_at_fault_is_told_so_by_the_decode_worker() -> None:
    async with engines("prefill", "decode") as mockers, routed(mockers) as client:
        answer = await chat(client, PROMPT, model="other")
        negative = await chat(client, PROMPT, stop=[""])
        await until_idle(client)

    assert answer.status_code == 404
    assert negative.status_code == 400
    assert "stop cannot contain an empty string" in negative.text


async def test_a_client_that_leaves_during_the_prefill_frees_everything() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, last = await reader.readuntil(b"\r\n\r\n"), b"connection: close"
        if b"/v1/models" in head:
            page = b'{"data":[{"id":"mock"}]}'
            writer.write(
                b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n" % (last, len(page)) + page
            )
        elif b"/v1/chat" not in head:
            writer.write(b"HTTP/1.1 404 Not Found\r\n%b\r\ncontent-length: 0\r\n\r\n" % last)
        else:
            began.set()
            await reader.read()
            left.set()
        writer.close()

    began, left = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    slow = f"http://127.0.0.1:{port},role=prefill"
    async with server, engines("decode") as mockers, routed(mockers, slow) as client:
        asking = asyncio.create_task(chat(client, PROMPT))
        await asyncio.wait_for(began.wait(), 60)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(left.wait(), 60)
        await until_idle(client)


async def test_a_decode_worker_that_dies_has_its_prefill_done_again() -> None:
    async with engines("prefill", "decode", "decode") as mockers, routed(mockers) as client:
        first = await chat(client, "a" + PROMPT)
        dead = int(workers_of(first)[1].removeprefix("w"))
        await mockers[dead].stop()
        answers = [await chat(client, f"{number}" + PROMPT) for number in range(4)]
        await until_idle(client)

    assert {workers_of(one) for one in answers} == {("w0", f"w{3 - dead}")}


@contextlib.asynccontextmanager
async def meeting(*roles: str) -> AsyncIterator[tuple[list[Mocker], httpx.AsyncClient]]:
    """Serve a router over engines that meet as SGLang's do."""
    async with contextlib.AsyncExitStack() as stack:
        mockers, urls = [], []
        for role in roles:
            options = MockerOptions(
                port=0,
                kv_events_port=0,
                replay_port=0,
                timing_profile="instant",
                role=role,  # type: ignore[arg-type]  # one of three
                bootstrap_port=free_port(),
            )
            mockers.append(Mocker(options))
            await mockers[-1].start()
            stack.push_async_callback(mockers[-1].stop)
            urls.append(f"{mockers[-1].url},role={role},bootstrap={options.bootstrap_port}")
        yield mockers, await stack.enter_async_context(routed([], *urls))


@pytest.mark.parametrize("stream", [False, True])
async def test_sglangs_workers_meet_in_a_room_of_their_own(stream: bool) -> None:
    async with meeting("prefill", "decode") as (_, client):
        answers = await asyncio.gather(
            *(chat(client, f"{number}" + PROMPT, stream=stream) for number in range(4))
        )
        # A decode worker of SGLang cannot do without a prefill worker, however little it is.
        short = await chat(client, "Hello?")
        await until_idle(client)

    assert {workers_of(one) for one in [*answers, short]} == {("w0", "w1")}
    if stream:
        assert all(one.text.endswith("data: [DONE]\n\n") for one in answers)
    else:
        assert all(one.json()["usage"]["completion_tokens"] == 4 for one in answers)


async def test_a_prefill_of_sglangs_that_fails_is_tried_elsewhere_or_told() -> None:
    async with meeting("prefill", "prefill", "decode") as (mockers, client):
        used = int(workers_of(await chat(client, "a" + PROMPT))[0].removeprefix("w"))
        await mockers[used].stop()
        others = [await chat(client, f"{number}" + PROMPT) for number in range(4)]
        await mockers[1 - used].stop()
        nobody = await chat(client, "b" + PROMPT)
        await until_idle(client)

    assert {workers_of(one) for one in others} == {(f"w{1 - used}", "w2")}
    assert nobody.status_code in {502, 503}
    assert "prefill" in nobody.json()["error"]["message"]


async def test_pretend_engines_refuse_requests_that_no_router_split() -> None:
    async with meeting("prefill", "decode") as (mockers, _), engines("prefill") as vllm:
        refusals = []
        for engine in [*mockers, *vllm]:
            async with httpx.AsyncClient(base_url=engine.url, timeout=60) as direct:
                refusals.append(await chat(direct, PROMPT))

    assert [one.status_code for one in refusals] == [400] * 3
    assert "without bootstrap room" in refusals[0].text
    assert "needs do_remote_decode" in refusals[2].text


async def test_sidecars_bring_roles_through_nats(
    nats_server: Served, eventually: Eventually, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    port = free_port()
    server = RouterServer(
        RouterSettings(
            router_id="r",
            cost=CostSettings(prefill_threshold=THRESHOLD),
            parity_sample=0,
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=nats,
        )
    )
    async with contextlib.AsyncExitStack() as stack:
        mockers = await stack.enter_async_context(engines("prefill", "decode"))
        await stack.enter_async_context(running(server.serve))
        for mocker in mockers:
            settings = WorkerSettings(
                engine_url=mocker.url,
                worker_id=mocker.options.role,
                role=mocker.options.role,
                nats=nats,
            )
            await stack.enter_async_context(running(Sidecar(settings).serve))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)
        await stack.enter_async_context(client)
        members = server.scheduler.workers.membership
        await eventually(
            lambda: len(members.usable(time.monotonic())) == 2 and server.mesh.why_not() == "",
            what="both workers are usable",
        )

        first = await chat(client, PROMPT)
        follow = await chat(client, PROMPT + "And then?")
        await until_idle(client)

    assert workers_of(first) == ("prefill", "decode")
    assert workers_of(follow) == ("", "decode")
