"""Clients whose turn is held: what they are told meanwhile, and that none of them gives up."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI

from kvmesh.settings.requests import ProgramSettings
from tests.integration.programs.test_turns import BLOCKS, LONG_TURN, NAME, said_to_hold, turn, until
from tests.integration.support.live_router import (
    client_of,
    engine,
    meta_router,
    mocker_options,
    router,
)

pytestmark = pytest.mark.integration

HELD_S = 12.0
WORDS = "first has to do this. " * 60
CHAT = "/v1/chat/completions"
TOLD = re.compile(rb": waiting(?:, about (\d+) s)?, at most (\d+) s\n")


@contextlib.asynccontextmanager
async def one_engine(**programs: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router over an engine that has room for two contexts, and says that it has less."""
    slow = msgspec.structs.replace(mocker_options(16, BLOCKS), timing_profile=LONG_TURN)
    settings = ProgramSettings(**programs)
    async with engine(slow) as mocker, client_of(router([mocker.url], program=settings)) as client:
        with said_to_hold(0.6):
            yield client


def asked(agent: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{agent} has to do this. " * 60}]
    return {"model": "mock", "max_tokens": 4, "messages": messages, **more}


async def pieces(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str
) -> tuple[httpx.Headers, list[tuple[float, bytes]]]:
    """Return the head of a stream, and what came of it, cut or not, with the seconds after which it
    came.
    """
    began, came = time.monotonic(), list[tuple[float, bytes]]()
    named = {NAME: body["messages"][0]["content"][:4]} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    async with client.stream("POST", path, json=body | {"stream": True}, headers=named) as answer:
        came.append((time.monotonic() - began, b""))
        with contextlib.suppress(httpx.RemoteProtocolError):
            async for part in answer.aiter_raw():
                came.append((time.monotonic() - began, part))
    return answer.headers, came


async def test_the_openai_client_outwaits_its_read_timeout_in_a_stream_and_is_not_held_without(
) -> None:  # fmt: skip
    async with one_engine(program_wait_s=HELD_S) as client:
        first = turn(client, "first", 800, words=WORDS)
        await until(client, "running")
        async with AsyncOpenAI(
            base_url=f"{client.base_url}/v1", api_key="k", max_retries=0, timeout=5.0
        ) as openai:
            began = time.monotonic()

            async def streamed() -> float:
                stream = await openai.chat.completions.create(
                    **asked("streamed", stream=True), extra_headers={NAME: "streamed"}
                )
                chunks = [chunk async for chunk in stream]
                assert chunks[-1].choices[0].finish_reason == "length"
                return time.monotonic() - began

            async def whole() -> float:
                answer = await openai.chat.completions.create(
                    **asked("whole"), extra_headers={NAME: "whole"}
                )
                assert answer.choices[0].finish_reason == "length"
                return time.monotonic() - began

            streamed_s, whole_s = await asyncio.gather(streamed(), whole())
        first.cancel()

    assert streamed_s >= HELD_S - 0.1
    assert whole_s < 5.0


@pytest.mark.parametrize("through", ["router", "meta-router"])
async def test_a_held_stream_is_told_at_once_how_long_it_waits_and_waits_no_longer(
    through: str,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(one_engine(program_wait_s=6.0))
        client = own
        if through == "meta-router":
            door = meta_router([f"default={own.base_url}"])
            client = await stack.enter_async_context(client_of(door))
        first = turn(own, "first", 800, words=WORDS)
        await until(own, "running")
        head, came = await pieces(client, CHAT, asked("held"), x_stainless_read_timeout="6")
        first.cancel()

    stream = b"".join(part for _, part in came)
    told = [(when, found) for when, part in came if (found := TOLD.match(part))]
    begun_s = next(when for when, part in came if b"x-kvmesh-worker" in part)
    wait_ms = int(stream.split(b": x-kvmesh-program-wait-ms: ")[1].split(b"\n")[0])
    assert came[0][0] < 1.5
    assert (head["x-kvmesh-bucket"], head["x-kvmesh-wait-s"]) == ("default", "6")
    assert len(told) >= 2
    assert all(wait_ms / 1000.0 <= when + int(found[2]) for when, found in told)
    assert all(later - when < 4.0 for (when, _), (later, _) in pairwise(came))
    assert 6000 <= wait_ms < 6500
    assert begun_s >= 6.0
    assert stream.count(b": x-kvmesh-worker: w0\n") == 1
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_a_held_message_gets_pings_and_an_error_as_a_named_event() -> None:
    async with one_engine(program_wait_s=2.0) as client:
        first = turn(client, "first", 800, words=WORDS)
        await until(client, "running")
        answers = await asyncio.gather(
            pieces(client, "/v1/messages", asked("held")),
            pieces(client, "/v1/messages", asked("long", max_tokens=100_000)),
        )
        first.cancel()

    held, refused = (b"".join(part for _, part in came) for _, came in answers)
    for stream in (held, refused):
        assert re.match(rb': waiting[^\n]*\nevent: ping\ndata: {"type":"ping"}\n\n', stream)
    assert b"event: message_start\n" in held
    assert held.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    name, data = refused.split(b"\n\n")[-2].split(b"\n")
    assert name == b"event: error"
    assert msgspec.json.decode(data.removeprefix(b"data: "))["error"]["code"] == 400


async def test_curl_gets_the_head_of_a_held_stream_at_once() -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("no curl")
    body = msgspec.json.encode(asked("held", stream=True)).decode()
    async with one_engine(program_wait_s=3.0) as client:
        first = turn(client, "first", 800, words=WORDS)
        await until(client, "running")
        shown = ("--write-out", "\n%{http_code} %{time_starttransfer} %{time_total}")
        json = ("-H", "content-type: application/json", "-H", f"{NAME}: held", "-d", body)
        process = await asyncio.create_subprocess_exec(
            *(curl, "-sS", "-N", *shown, *json, f"{client.base_url}{CHAT}"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        first.cancel()

    stream, _, written = out.rpartition(b"\n")
    status, first_s, total_s = written.split()
    assert status == b"200"
    assert TOLD.match(stream)
    assert float(first_s) < 1.5
    assert float(total_s) >= 3.0
