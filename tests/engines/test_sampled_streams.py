"""Sampled answers of real vLLM that are cut and go on: what follows is drawn as in whole ones.

A proxy before each engine cuts connections in place of a kill, 1,000 of which would take hours:
the router goes on with the stream by the same code.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from typing import Any

import httpx
import msgspec
import pytest

from tests.engines.conftest import interpreter
from tests.engines.engine_venv import VLLM
from tests.engines.pair import running_pair
from tests.engines.processes import eventually
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import QWEN3

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3600)]

ANSWERS = int(os.environ.get("KVMESH_SAMPLES", "200"))
"""Undisturbed ones, and as many that are cut; docs/measured/streams.md has 1,000."""
AT_ONCE = 8
TOKENS = 8
CUTS = range(1, 6)
"""Behind so many tokens an answer is cut."""

LIKELY = range(300, 312)
BIASES = {str(token): 9.0 - 0.25 * place for place, token in enumerate(LIKELY)}
"""The model's weights are dummies: all tokens would be equally likely, whatever was said."""

PENALTY = 1.3
"""What was said, before the cut as well, is less likely to come again."""

BODY = {
    "model": "tiny",
    "stream": True,
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "return_token_ids": True,
    "temperature": 1,
    "logit_bias": BIASES,
    "repetition_penalty": PENALTY,
    "messages": [{"role": "user", "content": "tell a story"}],
}
PROXIES = 4
"""Of each engine: a worker whose connections break is left out for a moment."""

MOST_TRIES = 30
Z_ALPHA = 3.0902
"""Of a normal distribution, one in 1,000 lies above."""


class Cutter:
    """Proxies that close the connection of a chat whose user is `cut-N-…` behind N tokens."""

    def __init__(self, engines: Sequence[str]) -> None:
        self.urls: list[str] = []
        self.cuts = 0
        self._loop = asyncio.new_event_loop()
        self._engines = engines
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> None:
        for engine in self._engines:
            host, port = engine.removeprefix("http://").split(":")

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                there: tuple[str, int] = (host, int(port)),
            ) -> None:
                await self._serve(reader, writer, there)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: tuple[str, int]
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(*there)
        left = 0

        async def ask() -> None:
            nonlocal left
            while data := await reader.read(1 << 16):
                if b'"user":"cut-' in data and b"POST /v1/chat/" in data:
                    left = int(data.partition(b'"user":"cut-')[2].partition(b"-")[0])
                    left += left > 0  # the first event holds the role alone
                up_writer.write(data)
            up_writer.close()

        asking = asyncio.ensure_future(ask())
        try:
            while data := await up_reader.read(1 << 16):
                if left and (found := data.count(b"data: ")) >= left:
                    parts = data.split(b"\n\n", left)
                    writer.write(b"\n\n".join(parts[:left]) + b"\n\n")
                    self.cuts += 1
                    break
                left -= found if left else 0
                writer.write(data)
        finally:
            asking.cancel()
            up_writer.close()
            writer.close()


class Fleet(msgspec.Struct):
    cutter: Cutter
    client: httpx.Client
    refusals: Counter[str]

    def ask(self, number: int, cut: int) -> list[int]:
        """Return the tokens of one answer, which is cut behind so many, 0 for never. Where so many
        workers break that none may be asked, it is asked for again.
        """
        for _ in range(MOST_TRIES):
            if ids := self._try(number, cut):
                return ids
            time.sleep(1.0)
        raise AssertionError(self.refusals)

    def _try(self, number: int, cut: int) -> list[int]:
        ids: list[int] = []
        body: dict[str, Any] = {**BODY, "user": f"cut-{cut}-{number}"}
        data = json.dumps(body, separators=(",", ":"))
        head = {"content-type": "application/json"}
        with self.client.stream(
            "POST", "/v1/chat/completions", content=data, headers=head
        ) as response:
            if response.status_code != httpx.codes.OK:
                self.refusals[response.read().decode()[:200]] += 1
                return []
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    ids += [one for c in event["choices"] for one in c.get("token_ids") or []]
        assert response.headers["x-kvmesh-resumable"] == "continued"
        return ids


@pytest.fixture(scope="module")
def fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    python = interpreter(request, VLLM)
    folder = tmp_path_factory.mktemp("sampled")
    more = ("--dtype", "float32")
    config = {**QWEN3, "torch_dtype": "float32"}
    with running_pair(python, folder, config, blocks=2048, more=more) as pair:
        cutter = Cutter([one.url for one in pair.engines for _ in range(PROXIES)])
        cutter.start()
        named = {str(number): url for number, url in enumerate(cutter.urls)}
        (folder / "router").mkdir()
        router = RouterAlone(folder / "router", named, ("--no-kv-events",))
        router.start()
        with httpx.Client(base_url=router.router_urls[0], timeout=300) as client:

            def usable() -> bool:
                workers = client.get("/v1/status").json()["workers"]
                return len(workers) == len(named) and all(one["usable"] for one in workers)

            eventually(usable, "all proxies are usable", within_s=60.0)
            yield Fleet(cutter, client, Counter())
        router.stop()


def cell(ids: Sequence[int], place: int) -> Hashable:
    """Return which token stands there, those that are unlikely as one, and whether it came
    before.
    """
    token = ids[place]
    return (token if token in LIKELY else None, token in ids[:place])


def excess(some: Counter[Hashable], others: Counter[Hashable]) -> float:
    """Return by how much chi-square of two samples is above what one pair in 1,000 of the same
    distribution has. Cells of which less than 5 are expected are one.
    """
    total = some.total() + others.total()
    rare = {one for one in some | others if (some + others)[one] * some.total() < 5 * total}
    cells: list[tuple[int, int]] = [(some[o], others[o]) for o in (some | others) if o not in rare]
    cells.append((sum(some[one] for one in rare), sum(others[one] for one in rare)))
    found, degrees = 0.0, -1
    for counts in cells:
        if not sum(counts):
            continue
        degrees += 1
        for count, size in zip(counts, (some.total(), others.total()), strict=True):
            expected = sum(counts) * size / total
            found += (count - expected) ** 2 / expected
    spread = 2 / (9 * degrees)
    return found - degrees * (1 - spread + Z_ALPHA * sqrt(spread)) ** 3  # Wilson and Hilferty


def test_tokens_behind_a_cut_are_drawn_from_the_same_distribution(fleet: Fleet) -> None:
    rng = random.Random(1)
    cuts = [rng.choice(CUTS) for _ in range(ANSWERS)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        whole = list(threads.map(fleet.ask, range(ANSWERS), [0] * ANSWERS))
        cut = list(threads.map(fleet.ask, range(ANSWERS), cuts))

    assert fleet.cutter.cuts >= ANSWERS
    assert {len(ids) for ids in (*whole, *cut)} == {TOKENS}
    behind = excess(
        Counter(cell(ids, at) for ids, at in zip(whole, cuts, strict=True)),
        Counter(cell(ids, at) for ids, at in zip(cut, cuts, strict=True)),
    )
    last = excess(Counter(cell(ids, -1) for ids in whole), Counter(cell(ids, -1) for ids in cut))
    apart = excess(
        Counter(cell(ids, 0) for ids in whole), Counter(cell(ids, TOKENS // 2) for ids in whole)
    )
    print(f"{ANSWERS} and {ANSWERS}: chi-square above its bound by {behind:.1f} for the token")  # noqa: T201
    print(f"behind the cut, {last:.1f} for the last, {apart:.1f} for tokens of two places")  # noqa: T201
    print(f"refused: {fleet.refusals}")  # noqa: T201
    assert behind <= 0
    assert last <= 0
    assert apart > 0, "the test tells distributions apart"
