"""Prefill and decode on two workers, through engines that refuse a wrong handshake."""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.serve.disaggregated import DisaggregatedRequest
from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.engines.registry import connectors
from kvmesh.settings.features import SplitSettings
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings, WorkerSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.command import Mocker
from tests.conftest import Eventually
from tests.integration.support.failing_engine import (
    answer_status,
    answer_well,
    failing_engines,
)
from tests.integration.support.live_router import client_of, free_port, mockers, router, running
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

PROMPT = "What everybody asks about, again and again. " * 30
THRESHOLD = 200
ALWAYS = SplitSettings(prefill_split="always")


@contextlib.asynccontextmanager
async def engines(*roles: str, **more: Any) -> AsyncIterator[list[Mocker]]:
    async with contextlib.AsyncExitStack() as stack:
        found: list[Mocker] = []
        for role in roles:
            found += await stack.enter_async_context(mockers(role=role, **more))
        yield found


@contextlib.asynccontextmanager
async def routed(
    running_engines: Sequence[Mocker], *urls: str, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router over them, called w0, w1, …"""
    workers = [f"{one.url},role={one.options.role}" for one in running_engines] + list(urls)
    cost = CostSettings(prefill_threshold=THRESHOLD)
    settings = {"split": ALWAYS} | settings
    async with (
        client_of(
            router(workers, kv_events=True, cost=cost, parity_sample=0, **settings)
        ) as client,
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

    def is_idle(status: Any) -> bool:
        return not any(one["active_requests"] + one["prefill_tokens"] for one in status["workers"])

    await seen(client, "/v1/status", is_idle)


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
    reasons = [one.headers.get("x-kvmesh-whole", "") for one in (short, first, follow, several)]
    assert reasons == ["little to prefill", "", "little to prefill", "several answers"]


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


@pytest.mark.parametrize(
    ("more", "answers", "why"),
    [
        ({"prompt": [PROMPT, "b" + PROMPT, "c" + PROMPT]}, 3, "several prompts"),
        ({"prompt": [[*range(300)], [*range(300, 0, -1)]]}, 2, "several prompts"),
        ({"prompt": PROMPT, "n": 2}, 2, "several answers"),
        ({"prompt": PROMPT, "best_of": 2, "n": 2}, 2, "several answers"),
        ({"prompt": [PROMPT]}, 1, ""),
        ({"prompt": [*range(300)]}, 1, ""),
    ],
)
async def test_only_one_prompt_with_one_answer_is_split(
    more: dict[str, Any], answers: int, why: str
) -> None:
    """Real engines end on others; the pretend ones answer them with status 500."""
    async with engines("prefill", "decode") as mockers, routed(mockers) as client:
        body = {"model": "mock", "max_tokens": 3} | more
        answer = await client.post("/v1/completions", json=body)
        await until_idle(client)
        page = (await client.get("/metrics")).text

    assert workers_of(answer) == ("" if why else "w0", "w1")
    assert len(answer.json()["choices"]) == answers
    assert answer.headers.get("x-kvmesh-whole", "") == why
    assert f'kvmesh_prefill_splits_total{{way="{why or "split"}"}} 1.0' in page


async def test_by_default_an_idle_fleet_splits_nothing_and_a_busy_one_does() -> None:
    """Nobody decodes whom a prefill could hold up; then somebody does."""
    slow = {"timing_profile": "linear,decode_base=40,prefill_per_token=0.5"}
    async with (
        engines("prefill", "decode", **slow) as mockers,
        routed(mockers, split=SplitSettings()) as client,
    ):
        idle = await chat(client, PROMPT)
        decoding = [
            asyncio.create_task(chat(client, f"Hello {number}?", stream=True, max_tokens=400))
            for number in range(12)
        ]
        await until_decoding(client, 12)
        busy = await chat(client, "b" + PROMPT)
        for one in decoding:
            one.cancel()
        await asyncio.gather(*decoding, return_exceptions=True)
        await until_idle(client)

    assert (workers_of(idle), idle.headers["x-kvmesh-whole"]) == (("", "w1"), "cheaper whole")
    assert workers_of(busy) == ("w0", "w1")


async def until_decoding(client: httpx.AsyncClient, count: int) -> None:
    """Wait until so many requests are booked and none has a prompt left to prefill."""

    def decodes(status: Any) -> bool:
        running = sum(one["active_requests"] for one in status["workers"])
        return running == count and not any(one["prefill_tokens"] for one in status["workers"])

    await seen(client, "/v1/status", decodes)


@contextlib.asynccontextmanager
async def connected(connector: str, *roles: str) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router over engines that share requests by that connector."""
    way = connectors()[connector]
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for role in roles:
            port = free_port() if f"{role}-port" in way.needs else 0
            made = mockers(role=role, bootstrap_port=port, kv_connector=connector)
            (mocker,) = await stack.enter_async_context(made)
            more = f",bootstrap={port}" if port else ""
            urls.append(f"{mocker.url},role={role},connector={connector}{more}")
        # Longer than the client waits: nobody is expected.
        failure = FailureSettings(wait_for_worker_s=600.0)
        yield await stack.enter_async_context(routed([], *urls, failure=failure))


@pytest.mark.parametrize("connector", [*connectors()])
async def test_each_connectors_workers_are_told_what_they_need(connector: str) -> None:
    """The pretend engines refuse whatever real ones would fail on."""
    way = connectors()[connector]
    async with connected(connector, "prefill", "decode") as client:
        answers = await asyncio.gather(
            *(chat(client, f"{number}" + PROMPT, stop=["zzz"]) for number in range(3)),
            chat(client, "s" + PROMPT, stream=True),
        )
        short = await chat(client, "Hello?")
        body = {"model": "mock", "prompt": [PROMPT, "b" + PROMPT], "max_tokens": 2}
        several = await client.post("/v1/completions", json=body)
        await until_idle(client)

    assert {workers_of(one) for one in answers} == {("w0", "w1")}
    assert workers_of(short) == ("" if way.whole else "w0", "w1")
    if way.whole or way.many:
        assert len(several.json()["choices"]) == 2
    else:
        assert several.status_code == 503
        assert "several prompts: only one prompt" in several.json()["error"]["message"]


OFFER = {"remote_engine_id": "e", "remote_host": "h", "remote_port": 1, "remote_block_ids": [[1]]}


def answer_prefill(exchange: Exchange) -> None:
    """Answer as a prefill worker does whose blocks will be gone."""
    body = {"id": "x", "choices": [], "kv_transfer_params": OFFER}
    exchange.respond(200, json.dumps(body).encode())


def answer_without_transfer(exchange: Exchange) -> None:
    """Answer as a decode worker does that cannot fetch."""
    fetches = "kv_transfer_params" in json.loads(exchange.request.body)
    (answer_status(500) if fetches else answer_well)(exchange)


async def test_a_decode_worker_that_cannot_fetch_is_not_blamed() -> None:
    """The prefill worker died behind its answer: the decode worker computes the prompt itself."""
    async with failing_engines(2) as (prefill, decode):
        prefill.answer, decode.answer = answer_prefill, answer_without_transfer
        urls = f"{prefill.url},role=prefill,zmq=off", f"{decode.url},role=decode,zmq=off"
        async with routed([], *urls) as client:
            answers = [await chat(client, f"{number}" + PROMPT, model="m") for number in range(8)]
            workers = (await client.get("/v1/status")).json()["workers"]

    assert {workers_of(one) for one in answers} == {("", "w1")}
    assert {one.headers["x-kvmesh-whole"] for one in answers} == {"no prefill worker"}
    assert all(one["usable"] for one in workers)
    assert [("kv_transfer_params" in one) for one in decode.prompts] == [True, False] * 8


async def test_a_decode_worker_that_meets_a_prefill_worker_is_not_taken_to_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two engines' first contact takes longer than --hang-s."""
    monkeypatch.setattr("kvmesh.app.members.hang_watch.ASK_AFTER_S", 0.1)

    def answer_late(exchange: Exchange) -> None:
        asyncio.get_running_loop().call_later(2.5, answer_well, exchange)

    async with failing_engines(3) as (prefill, *decoders):
        prefill.answer = answer_prefill
        urls = [f"{one.url},role=decode,zmq=off" for one in decoders]
        impatient = FailureSettings(hang_s=0.01)
        async with routed(
            [], f"{prefill.url},role=prefill,zmq=off", *urls, failure=impatient
        ) as client:
            # Who has served nobody yet is given more time.
            for number in range(4):
                await chat(client, f"{number}" + PROMPT, model="m")
            for one in decoders:
                one.answer = answer_late
                one.prompts.clear()
            answer = await chat(client, "z" + PROMPT, model="m")

    assert workers_of(answer)[0] == "w0"
    assert sum(len(one.prompts) for one in decoders) == 1


def answer_after(seconds: float) -> Callable[[Exchange], None]:
    """Answer well, so long after the request came."""

    def answer(exchange: Exchange) -> None:
        asyncio.get_running_loop().call_later(seconds, answer_well, exchange)

    return answer


@pytest.mark.parametrize(
    ("connector", "contact_s", "prefill_s", "decode_s"),
    [("p2p-nccl", 1.5, 2.5, 1.4), ("bootstrap", 10.0, 0.0, 2.5)],
)
async def test_a_decode_worker_that_waits_for_the_prefill_is_not_taken_to_hang(
    connector: str,
    contact_s: float,
    prefill_s: float,
    decode_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was chosen before the prefill was done, or waits for it in a room."""
    monkeypatch.setattr("kvmesh.app.members.hang_watch.ASK_AFTER_S", 0.1)
    monkeypatch.setattr("kvmesh.app.serve.disaggregated.CONTACT_S", contact_s)
    async with failing_engines(2) as (prefill, decode):
        more = f"zmq=off,connector={connector},bootstrap=9"
        urls = f"{prefill.url},role=prefill,{more}", f"{decode.url},role=decode,{more}"
        impatient = FailureSettings(hang_s=0.01)
        async with routed([], *urls, failure=impatient) as client:
            # Who has served nobody yet is given more time.
            for number in range(4):
                await chat(client, f"{number}" + PROMPT, model="m")
            for one, seconds in ((prefill, prefill_s), (decode, decode_s)):
                one.answer = answer_after(seconds)
                one.prompts.clear()
            answer = await chat(client, "z" + PROMPT, model="m")

    assert workers_of(answer) == ("w0", "w1")
    assert (len(prefill.prompts), len(decode.prompts)) == (1, 1)


def answer_open(exchange: Exchange) -> None:
    """Begin a stream and leave it open."""
    exchange.start(200, ((b"content-type", b"text/event-stream"),))
    exchange.write(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')


def held_bytes(root: object, depth: int = 3) -> int:
    """Return the size of the longest bytes within so many steps of an object."""
    if isinstance(root, bytes):
        return len(root)
    inner = [] if not depth or isinstance(root, type) else gc.get_referents(root)
    return max((held_bytes(one, depth - 1) for one in inner), default=0)


@pytest.mark.parametrize("kind", [DisaggregatedRequest, Fetching])
async def test_of_a_stream_that_will_not_go_on_no_body_is_kept(kind: type) -> None:
    async with failing_engines(2) as (first, second):
        first.answer, second.answer = answer_prefill, answer_open
        roles = "zmq=off,role=prefill", "zmq=off,role=decode"
        if kind is Fetching:
            first.answer = answer_open
            roles = ("zmq=off,label=kvmesh/fetch/offloading/9",) * 2
        urls = [f"{one.url},{more}" for one, more in zip((first, second), roles, strict=True)]
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": "m", "stream": True, "messages": messages}
        keeps_none = UpstreamSettings(keep_stream_bytes=0)
        async with (
            routed([], *urls, upstream=keeps_none) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert "data:" in await anext(answer.aiter_text())
            plans = [one for one in gc.get_objects() if type(one) is kind]
            kept = [max(map(held_bytes, vars(one).values())) for one in plans]
            del plans

    assert len(kept) == 1
    assert kept[0] < len(PROMPT)


async def test_an_answer_that_transfers_nothing_leaves_the_decode_worker_alone() -> None:
    async with failing_engines(2) as (prefill, decode):
        urls = f"{prefill.url},role=prefill,zmq=off", f"{decode.url},role=decode,zmq=off"
        async with routed([], *urls) as client:
            answer = await chat(client, PROMPT, model="m")
            await until_idle(client)

    assert workers_of(answer) == ("", "w1")
    assert answer.headers["x-kvmesh-whole"] == "prefill failed"
    assert "kv_transfer_params" not in decode.prompts[0]


async def test_a_transfer_that_has_expired_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that waited for its decode worker's turn longer than blocks are kept."""
    monkeypatch.setattr("kvmesh.app.serve.disaggregated.LEASE_SHARE", -1.0)
    async with engines("prefill", "decode") as mockers, routed(mockers) as client:
        answer = await chat(client, PROMPT)
        await until_idle(client)

    assert workers_of(answer) == ("", "w1")
    assert answer.headers["x-kvmesh-whole"] == "transfer expired"


async def test_a_connector_of_a_later_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {name: way for name, way in connectors().items() if name != "nixl-push"}
    async with connected("nixl-push", "prefill", "decode") as client:
        monkeypatch.setattr("kvmesh.actors.messages.connectors", lambda: known)
        answer = await chat(client, PROMPT)

    assert workers_of(answer) == ("", "w1")
    assert answer.headers["x-kvmesh-whole"] == "no prefill worker"


async def test_a_prefill_worker_that_does_not_tell_who_it_is_is_done_without() -> None:
    """Mooncake's bootstrap server is down."""
    async with engines("prefill", "decode") as mockers:
        urls = [f"{one.url},role={one.options.role},connector=mooncake" for one in mockers]
        async with routed([], f"{urls[0]},bootstrap={free_port()}", urls[1]) as client:
            answer = await chat(client, PROMPT)
            await until_idle(client)

    assert workers_of(answer) == ("", "w1")
    assert answer.headers["x-kvmesh-whole"] == "no prefill worker"


@contextlib.asynccontextmanager
async def meeting(*roles: str) -> AsyncIterator[tuple[list[Mocker], httpx.AsyncClient]]:
    """Serve a router over engines that meet as SGLang's do."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[Mocker] = []
        for role in roles:
            made = mockers(role=role, bootstrap_port=free_port())
            found += await stack.enter_async_context(made)
        urls = [
            f"{one.url},role={one.options.role},bootstrap={one.options.bootstrap_port}"
            for one in found
        ]
        yield found, await stack.enter_async_context(routed([], *urls))


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
    nats_server: NatsServer, eventually: Eventually, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    port = free_port()
    server = RouterServer(
        RouterSettings(
            router_id="r",
            cost=CostSettings(prefill_threshold=THRESHOLD),
            split=ALWAYS,
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
