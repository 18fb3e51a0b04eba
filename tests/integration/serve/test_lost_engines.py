"""Engines that are killed or stopped under their streams, as processes: no client notices."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.live_router import client_of, router
from tests.integration.support.told_stream import WORDS, Told, form, tell
from tests.integration.support.waiting import until_ready

pytestmark = pytest.mark.integration

TOKENS = 60
CUT = 33
"""Behind so many tokens: of a long prompt the ids alone are kept by then."""

STREAMS = 80
RETRIES = 25
"""What one tenant has saved up of them: an engine loses more streams at once."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[MeshProcess]]:
    folder = tmp_path_factory.mktemp("engines")
    ports = fixed_ports(6)
    found = [_engine(folder, number, ports[3 * number :]) for number in range(2)]
    try:
        yield found
    finally:
        for one in found:
            one.kill()


def _engine(folder: Path, number: int, ports: Sequence[int]) -> MeshProcess:
    port, events, replay = ports[:3]
    feeds = ["--kv-events-port", str(events), "--kv-replay-port", str(replay)]
    words = ["mocker", "--http-port", str(port), *feeds]
    return MeshProcess(f"w{number}", f"http://127.0.0.1:{port}", words, folder / f"{number}.log")


@contextlib.asynccontextmanager
async def clients(engines: Sequence[MeshProcess]) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a router whose engines all run."""
    for one in engines:
        one.start()
    async with httpx.AsyncClient(timeout=5.0) as asking:
        for one in engines:
            await until_ready(asking, one.url, "/health")
    async with client_of(router([one.url for one in engines], parity_sample=0)) as client:
        yield client


async def undisturbed(engine: MeshProcess, path: str, body: dict[str, Any]) -> Told:
    async with httpx.AsyncClient(base_url=engine.url, timeout=30.0) as client:
        return await tell(client, path, body)


@pytest.mark.parametrize("behind", ["", "and at length. " * 400], ids=["short", "long"])
@pytest.mark.parametrize("name", ["chat", "sampled chat", "completion with ids"])
async def test_a_stream_survives_kill_9_of_its_engine(
    engines: Sequence[MeshProcess], name: str, behind: str
) -> None:
    path, body = form(name, tokens=TOKENS, behind=behind)
    async with clients(engines) as client:
        before = await undisturbed(engines[0], path, body)

        def kill(told: Told) -> None:
            if len(told.texts) == CUT:
                engines[int(told.worker[1:])].kill()

        told = await tell(client, path, body, kill)

    assert told.said == before.said
    assert told.resumable == WORDS.get(name, "exact")
    assert [one.alive for one in engines].count(False) == 1


async def test_all_streams_of_an_engine_survive_its_death(engines: Sequence[MeshProcess]) -> None:
    asked = [form("chat", number, 5 * TOKENS) for number in range(STREAMS)]
    async with clients(engines) as client:
        before = [await undisturbed(engines[0], *one) for one in asked[:4]]
        begun: set[str] = set()

        def kill(told: Told) -> None:
            if told.texts:
                begun.add(told.head["x-request-id"])
            if len(begun) == STREAMS:
                engines[0].kill()

        after = await asyncio.gather(*(tell(client, *one, kill) for one in asked))

    assert [one.said for one in after[:4]] == [one.said for one in before]
    assert {(one.dones, len(one.errors), one.broken) for one in after} == {(1, 0, False)}
    assert [one.worker for one in after].count("w0") > RETRIES


async def test_a_program_of_openai_notices_nothing(engines: Sequence[MeshProcess]) -> None:
    _, body = form("chat", tokens=TOKENS)
    asked: dict[str, Any] = {name: body[name] for name in ("model", "messages", "temperature")}
    texts = []
    async with (
        clients(engines) as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="k") as program,
    ):
        create = program.chat.completions.with_raw_response.create
        for killed in (False, True):
            answer = await create(**asked, max_tokens=TOKENS, stream=True)
            pieces: list[str] = []
            async with answer.parse() as chunks:
                async for chunk in chunks:
                    pieces.append(chunk.choices[0].delta.content or "")
                    if killed and len(pieces) == CUT:
                        engines[int(answer.headers["x-kvmesh-worker"][1:])].kill()
            texts.append("".join(pieces))

    assert texts[0] == texts[1] != ""


async def test_streams_of_an_engine_that_is_stopped_go_on(engines: Sequence[MeshProcess]) -> None:
    asked = [form("chat", number, 400) for number in range(4)]
    stopped: list[MeshProcess] = []
    longest_s = last_s = 0.0

    async with clients(engines) as client:
        before = [await undisturbed(engines[0], path, body) for path, body in asked]

        def stop(told: Told) -> None:
            nonlocal longest_s, last_s
            if not stopped and len(told.texts) == CUT:
                stopped.append(engines[int(told.worker[1:])])
                stopped[0].freeze()
                last_s = time.monotonic()
            elif stopped and told.worker == stopped[0].name:
                longest_s = max(longest_s, time.monotonic() - last_s)
                last_s = time.monotonic()

        told = await asyncio.gather(*(tell(client, path, body, stop) for path, body in asked))
        stopped[0].kill()

    assert [one.said for one in told] == [one.said for one in before]
    assert 2.0 < longest_s < 12.0
