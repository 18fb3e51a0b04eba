"""The pretend vLLM's faults over real sockets: what a client sees of each."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.command import Mocker, options_from
from kvmesh_lab.mocker.model.faults import DEAD_MESSAGE, FaultOptions
from kvmesh_lab.mocker.settings import MockerSettings
from tests.integration.support.live_router import mockers
from tests.integration.support.stream_oracle import Finding, StreamOracle, received
from tests.integration.tools.mocker_process import mocker_process

pytestmark = pytest.mark.integration

PROMPT = {"prompt": "tell me about caches", "max_tokens": 12}
GENERATION = ("chat/completions", "completions", "responses", "messages", "embeddings")
PROBES = ("/health", "/v1/models", "/metrics", "/load", "/ping", "/version")


@asynccontextmanager
async def serving(
    *fail: str, flap: str = "", fail_health: bool = False, **changes: Any
) -> AsyncIterator[tuple[Mocker, httpx.AsyncClient]]:
    faults = FaultOptions(fail=fail, flap=flap, fail_health=fail_health)
    options: dict[str, Any] = {"num_gpu_blocks_override": 512, "faults": faults} | changes
    async with (
        mockers(**options) as (mocker,),
        httpx.AsyncClient(base_url=mocker.url, timeout=60) as client,
    ):
        yield mocker, client


async def raw_answer(mocker: Mocker, body: dict[str, Any]) -> bytes:
    """Everything the connection brings until it ends. Raises `ConnectionResetError`."""
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(mocker.url.rsplit(":")[-1]))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(content)
    writer.write(head + content)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def idle(mocker: Mocker) -> None:
    """Wait until the engine holds nothing for anybody."""
    async with asyncio.timeout(60):
        while mocker.ranks[0].statistics().active_blocks:  # noqa: ASYNC110  freed by a socket
            await asyncio.sleep(0.002)


async def read_stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> bytes:
    """What a stream brings until it breaks off."""
    data = b""
    with contextlib.suppress(httpx.RemoteProtocolError):
        async with client.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200
            async for piece in reply.aiter_bytes():
                data += piece
        raise AssertionError("it ended as if it were whole")
    return data


async def test_a_status_is_answered_at_once_on_every_generation_path() -> None:
    async with serving("1:429=3") as (mocker, client):
        for path in GENERATION:
            reply = await client.post(f"/v1/{path}", content=b"not even JSON")
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
            assert reply.json()["error"]["code"] == 429
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert mocker.ranks[0].statistics().steps == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_dead_looks_healthy_to_probes(stream: bool) -> None:
    async with serving("1:dead") as (_, client):
        reply = await client.post("/v1/completions", json=PROMPT | {"stream": stream})
        probes = [(await client.get(path)).status_code for path in PROBES]

    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == DEAD_MESSAGE
    assert "retry-after" not in reply.headers
    assert set(probes) == {200}


async def test_a_request_that_hangs_is_never_answered_and_others_are() -> None:
    async with serving("1:hang") as (_, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=PROMPT, timeout=0.2)
        assert (await client.get("/health")).status_code == 200
        met = (await client.get("/kvmesh/faults")).json()

        assert met["met"] == {"hang": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_answer_is_whole_and_takes_so_many_times_as_long(stream: bool) -> None:
    body = PROMPT | {"stream": stream, "return_token_ids": True}
    steps = "linear,decode_base=4"
    async with serving(timing_profile=steps) as (_, client):
        began = time.monotonic()
        quick = (await client.post("/v1/completions", json=body)).text
        quick_s = time.monotonic() - began
    async with serving("1:slow=20", timing_profile=steps) as (mocker, client):
        began = time.monotonic()
        slow = (await client.post("/v1/completions", json=body)).text
        slow_s = time.monotonic() - began

        assert slow_s > 11 * 0.004 * 20
        assert slow_s > 3 * quick_s
        assert ids_of(slow, stream=stream) == ids_of(quick, stream=stream)
        await idle(mocker)
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_the_first_token_of_a_slow_answer_comes_so_much_later_too() -> None:
    body = PROMPT | {"stream": True}
    async with (
        serving("1:slow=20", timing_profile="linear,prefill_base=10,decode_base=10") as (_, client),
        client.stream("POST", "/v1/completions", json=body) as reply,
    ):
        began = time.monotonic()
        await anext(reply.aiter_lines())

        assert time.monotonic() - began > 0.15


def ids_of(answer: str, *, stream: bool) -> list[int]:
    if not stream:
        whole: list[int] = json.loads(answer)["choices"][0]["token_ids"]
        return whole
    lines = [line for line in answer.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    return [one for chunk in chunks for one in chunk["choices"][0]["token_ids"]]


async def test_a_client_that_leaves_a_slow_answer_frees_its_blocks() -> None:
    body = PROMPT | {"stream": True, "max_tokens": 400, "ignore_eos": True}
    steps = "linear,decode_base=60000"
    async with serving("1:slow=2", timing_profile=steps) as (mocker, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=body, timeout=0.3)

        await idle(mocker)
        assert (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reset_comes_before_any_byte(stream: bool) -> None:
    async with serving("1:reset") as (mocker, client):
        with pytest.raises(ConnectionResetError):
            await raw_answer(mocker, PROMPT | {"stream": stream})
        assert (await client.get("/health")).status_code == 200


async def test_a_whole_answer_is_cut_behind_half_of_its_body() -> None:
    async with serving("1:cut") as (mocker, client):
        head, _, body = (await raw_answer(mocker, PROMPT)).partition(b"\r\n\r\n")
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json=PROMPT)

        assert head.startswith(b"HTTP/1.1 200 ")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) == length // 2
        await idle(mocker)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 400])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
async def test_a_stream_is_cut_in_the_middle_of_an_event_however_short(
    path: str, tokens: int
) -> None:
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with serving("1:cut") as (mocker, client):
        asked = body | {"max_tokens": tokens, "ignore_eos": True, "model": "mock"}
        data = await read_stream(client, path, asked)

        assert data.count(b"\n\n") >= min(tokens, 3)
        assert not data.endswith(b"\n\n")
        assert b"[DONE]" not in data
        assert b"message_stop" not in data
        await idle(mocker)
        assert (await client.get("/load")).json() == {"server_load": 0}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_hangs_behind_so_many_tokens(path: str) -> None:
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    asked = body | {"max_tokens": 9, "ignore_eos": True, "return_token_ids": True}
    async with serving("1:hang-after=4") as (mocker, client):
        data = b""
        async with client.stream("POST", path, json=asked, timeout=0.5) as reply:
            with contextlib.suppress(httpx.ReadTimeout):
                async for piece in reply.aiter_bytes():
                    data += piece
        assert StreamOracle().judge(path, asked, data) == Finding("cut", 4, 5)
        await idle(mocker)
        whole = await client.post(path, json=asked | {"stream": False})
        assert whole.json()["usage"]["completion_tokens"] == 9
        short = await client.post(path, json=asked | {"max_tokens": 3})
        assert StreamOracle().judge(path, asked | {"max_tokens": 3}, short.content) == Finding("")
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_a_mocker_dies_behind_so_many_tokens() -> None:
    asked = {"prompt": "hi", "stream": True, "max_tokens": 60, "ignore_eos": True}
    async with (
        mocker_process(fail="1:die-after=7", speedup_ratio=10) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        data = await read_stream(client, "/v1/completions", asked)
        assert received(data).text == StreamOracle().expected("/v1/completions", asked).text(0, 7)
        with pytest.raises(httpx.TransportError):
            await client.get("/health")


async def test_garbage_and_half_a_head_are_no_answers() -> None:
    async with serving("1:garbage") as (mocker, client):
        assert b"HTTP/1.1" not in await raw_answer(mocker, PROMPT)
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json=PROMPT)
    async with serving("1:half-head") as (mocker, client):
        begun = await raw_answer(mocker, PROMPT)
        assert begun.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\n\r\n" not in begun
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v1/completions", json=PROMPT)


TOKENS = PROMPT | {"ignore_eos": True}
STREAM = TOKENS | {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("fault", "whole", "stream"),
    [
        ("empty-body", b"^$", b"^$"),
        ("empty-stream", b"^$", b"^$"),
        ("html", b"^<html>", b"^<html>"),
        ("error-200", b'^{"error":{"message":"CUDA error', b'^{"error":{"message":"CUDA error'),
        ("error-event", b'^{"error":', b'^data: {"error":.*\n\ndata: \\[DONE\\]\n\n$'),
        ("wrong-model", b'"model":"another-model"', b'"model":"another-model"'),
        ("half-json", b'^{"id":.*[^}]$', b"^data: {[^\n]*}\n\n[^\n]*$"),
        ("no-done", b'"usage":', b'"finish_reason":null'),
        ("no-tokens", b'"text":"".*"completion_tokens":0', b'"text":"".*"completion_tokens":0'),
    ],
)
async def test_a_bad_answer_has_status_200_and_ends_as_if_it_were_one(
    fault: str, whole: bytes, stream: bytes
) -> None:
    async with serving(f"1:{fault}") as (mocker, client):
        for body, expected in ((TOKENS, whole), (STREAM, stream)):
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200
            assert re.search(expected, reply.content, re.DOTALL), reply.content
            if fault == "no-done":
                assert b"[DONE]" not in reply.content
        await idle(mocker)
        assert (await client.get("/kvmesh/faults")).json()["met"] == {fault: 2}


async def test_random_bytes_are_the_same_for_the_same_seed() -> None:
    async with serving("1:random-bytes") as (_, client), serving("1:random-bytes") as (__, other):
        whole, streamed = [
            (await client.post("/v1/completions", json=one)) for one in (PROMPT, STREAM)
        ]
        again = await other.post("/v1/completions", content=b"not even JSON")

    assert whole.content == again.content
    assert len(whole.content) == len(streamed.content) == 300
    assert streamed.headers["content-type"].startswith("text/event-stream")


async def test_requests_without_a_fault_are_answered_as_ever() -> None:
    async with serving("0.5:500") as (_, client):
        replies = [(await client.post("/v1/completions", json=PROMPT)) for _ in range(40)]
        view = (await client.get("/kvmesh/faults")).json()

    failed = sum(reply.status_code == 500 for reply in replies)
    assert 8 <= failed <= 32
    assert all(reply.json()["choices"] for reply in replies if reply.status_code == 200)
    assert view == {
        "fail": ["0.5:500"],
        "flap": "",
        "fail_health": False,
        "fail_seed": 0,
        "slowdown": 1.0,
        "first_pause_s": 0.0,
        "stall": False,
        "hang_health": False,
        "bad_now": True,
        "requests": 40,
        "met": {"500": failed},
    }


async def test_faults_are_changed_while_it_runs() -> None:
    async with serving() as (_, client):
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
        changed = await client.post("/kvmesh/faults", json={"fail": ["1:502"]})
        assert (changed.status_code, changed.json()["fail"]) == (200, ["1:502"])
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 502
        assert (await client.get("/kvmesh/faults")).json()["met"] == {"502": 1}
        healed = await client.post("/kvmesh/faults", json={})
        assert (healed.json()["fail"], healed.json()["requests"]) == ([], 0)
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "truncated"),
        (b'{"fail": "0.3:500"}', "Expected `array`"),
        (b'{"fial": []}', "unknown field"),
        (b'{"fail": ["0.7:500", "0.7:hang"]}', "--fail: the shares sum up to 1.4"),
        (b'{"fail": ["NaN:500"]}', "--fail NaN:500: write SHARE:KIND"),
        (b'{"flap": "2"}', "--flap 2: write GOOD:BAD"),
        (b'{"fail": ["1:500"], "fail_seed": "x"}', "Expected `int`"),
    ],
)
async def test_what_makes_no_sense_is_400_and_changes_nothing(body: bytes, message: str) -> None:
    async with serving("1:503") as (_, client):
        refused = await client.post("/kvmesh/faults", content=body)

        assert refused.status_code == 400
        assert message in refused.json()["error"]["message"]
        assert refused.json()["error"]["message"].startswith("/kvmesh/faults: ")
        assert (await client.get("/kvmesh/faults")).json()["fail"] == ["1:503"]


async def test_health_fails_in_the_bad_phases_when_asked_to() -> None:
    async with serving(fail_health=True) as (_, client):
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/v1/models")).status_code == 200
        good = {"fail_health": True, "fail": ["1:500"], "flap": "3600:1"}
        assert (await client.post("/kvmesh/faults", json=good)).json()["bad_now"] is False
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
        bad = {"fail_health": True, "fail": ["1:500"], "flap": "0.001:3600"}
        await client.post("/kvmesh/faults", json=bad)
        async with asyncio.timeout(60):
            while not (await client.get("/kvmesh/faults")).json()["bad_now"]:
                pass
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json=PROMPT)).status_code == 500


def test_flags_reach_the_engine_and_wrong_ones_stop_it() -> None:
    settings = MockerSettings(fail=("0.3:500", "0.1:hang"), flap="2:2", fail_seed=5)

    assert options_from(settings).faults == FaultOptions(
        ("0.3:500", "0.1:hang"), "2:2", fail_seed=5
    )
    with pytest.raises(ConfigError, match="--fail 2:500"):
        Mocker(options_from(MockerSettings(fail=("2:500",))))


async def lasted(client: httpx.AsyncClient) -> float:
    began = time.monotonic()
    assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
    return time.monotonic() - began


async def test_an_engine_is_slowed_down_as_a_whole_and_pauses_once() -> None:
    async with serving(timing_profile="dynamo") as (_, client):
        await lasted(client)
        usual_s = await lasted(client)

        await client.post("/kvmesh/faults", json={"slowdown": 10.0})
        assert await lasted(client) > 4 * usual_s
        await client.post("/kvmesh/faults", json={"first_pause_s": 2.0})
        assert await lasted(client) > 2.0
        assert await lasted(client) < 2.0


async def test_a_stalled_engine_keeps_its_requests_and_its_figures_until_it_goes_on() -> None:
    async with serving(timing_profile="dynamo") as (mocker, client):
        await lasted(client)
        long = {"prompt": "tell me all about caches", "max_tokens": 300}
        asked = asyncio.create_task(client.post("/v1/completions", json=long))
        engine = mocker.ranks[0]
        async with asyncio.timeout(10):
            while not engine.statistics().running_requests:  # noqa: ASYNC110  it cannot tell
                await asyncio.sleep(0.005)

        await client.post("/kvmesh/faults", json={"stall": True})
        before = engine.statistics()
        assert before.running_requests == 1
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=PROMPT, timeout=0.5)
        assert engine.statistics() == before
        assert (await client.get("/health")).status_code == 200

        await client.post("/kvmesh/faults", json={"stall": False})
        assert (await asked).json()["usage"]["completion_tokens"] == 300


async def test_an_engine_may_leave_its_probes_unanswered() -> None:
    async with serving() as (_, client):
        await client.post("/kvmesh/faults", json={"hang_health": True})
        for path in PROBES:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(path, timeout=0.2)

        await client.post("/kvmesh/faults", json={})
        assert (await client.get("/health")).status_code == 200
