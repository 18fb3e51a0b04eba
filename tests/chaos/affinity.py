"""Prompts whose beginnings some worker holds: does the next request with one go there?"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx

DEADLINE_S = 180.0
POLL_S = 0.05
TOGETHER = 8


class Prefixes:
    """`count` prompts with nothing in common but the chat template; who holds each."""

    def __init__(self, client: httpx.AsyncClient, count: int) -> None:
        self._client = client
        self._texts = [f"{number} is where this one begins. " * 100 for number in range(count)]
        self._holders: list[str] = []
        self._asked = 0

    async def store(self, url: str) -> None:
        """Have each computed by whichever worker the router chooses, several at a time."""
        slots = asyncio.Semaphore(TOGETHER)

        async def one(text: str) -> str:
            async with slots:
                return (await self._post(url, text)).headers["x-kvmesh-worker"]

        self._holders = await asyncio.gather(*map(one, self._texts))

    async def affinity(self, url: str) -> float:
        """Return which share of one new question each goes to the worker that holds its prefix.

        Of a question that goes elsewhere it prints why, for the reader of a failed test.
        """
        self._asked += 1
        hits = 0
        for text, held in zip(self._texts, self._holders, strict=True):
            answer = await self._post(url, f"{text}Question {self._asked}?")
            went = answer.headers["x-kvmesh-worker"]
            hits += went == held
            if went != held:
                path = f"{url}/v1/decisions/{answer.headers['x-request-id']}"
                why = (await self._client.get(path)).text
                print(f"went to {went}, not to {held}: {why}")  # noqa: T201
        return hits / len(self._texts)

    async def wait_known(self, urls: Sequence[str]) -> None:
        """Wait until these routers agree on an index that stays the same for a moment."""
        deadline_s = time.monotonic() + DEADLINE_S
        last: list[Any] = []
        while True:
            now = [await index_of(self._client, url) for url in urls]
            if now == last and all(one == now[0] for one in now):
                return
            assert time.monotonic() < deadline_s, now
            last = now
            await asyncio.sleep(10 * POLL_S)

    async def _post(self, url: str, text: str) -> httpx.Response:
        body = {
            "model": "mock",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": text}],
        }
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            answer = await self._client.post(f"{url}/v1/chat/completions", json=body)
            # On a starved machine heartbeats may be late, and then no worker is known for a moment.
            late = answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
            if not late or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(POLL_S)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer


async def index_of(client: httpx.AsyncClient, url: str) -> tuple[Any, ...]:
    """Return what a router's index holds: position, blocks and digest of every worker."""
    mesh = (await client.get(f"{url}/v1/status")).json()["mesh"]
    return mesh["applied_sequence"], mesh["blocks"], mesh["worker_digests"]


async def wait_reason(client: httpx.AsyncClient, url: str, reason: str) -> None:
    """Wait until a router says of its readiness what it should."""
    deadline_s = time.monotonic() + DEADLINE_S
    said = "nothing"
    while said != reason:
        assert time.monotonic() < deadline_s, f"{url} says {said!r}, not {reason!r}"
        await asyncio.sleep(POLL_S)
        try:
            said = (await client.get(f"{url}/ready")).json()["reason"]
        except httpx.HTTPError as error:
            said = repr(error)
