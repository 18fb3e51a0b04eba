"""Two sites over a leaf node: who serves what, the network whole, cut, healed, and one dead."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chaos.process import MeshProcess
from tests.integration.support.two_sites import (
    ENGINE,
    Site,
    TwoSites,
    status,
    two_sites,
    until_lost,
    until_usable,
)
from tests.integration.support.waiting import until, until_ready

pytestmark = pytest.mark.integration


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[TwoSites]:
    async with two_sites(tmp_path, *ENGINE) as both:
        for one, other in ((both.a, "b"), (both.b, "a")):
            await until_usable(one, other)
        yield both


def _body(text: str, tokens: int = 4, *, stream: bool = True) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    return {"model": "mock", "stream": stream, "max_tokens": tokens, "messages": turns}


async def _ask(
    client: httpx.AsyncClient, text: str, tokens: int = 4, **headers: str
) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=_body(text, tokens), headers=headers)


def _told(answer: httpx.Response, name: str) -> str:
    """Return a header, or the comment that it is in a stream that was held."""
    late = re.search(rf"^: {name}: (.*)$", answer.text, re.MULTILINE)
    found: str = answer.headers.get(name, "" if late is None else late[1])
    return found


def _site(answer: httpx.Response) -> str:
    return _told(answer, "x-kvmesh-site")


def _client(site: Site) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=site.url, timeout=60, limits=limits)


async def _flood(site: Site, requests: int, chars: int = 8_000) -> list[httpx.Response]:
    """Send more prompts at once than the site computes in a second."""
    async with _client(site) as client:
        texts = [f"{number} " + f"word{number} " * (chars // 8) for number in range(requests)]
        return await asyncio.gather(*(_ask(client, text) for text in texts))


async def test_requests_leave_a_site_only_while_it_is_full(sites: TwoSites) -> None:
    async with _client(sites.a) as client:
        easy = [await _ask(client, f"easy {number}") for number in range(10)]
    flood = await _flood(sites.a, 40)

    assert {one.status_code for one in (*easy, *flood)} == {200}
    assert {_site(one) for one in easy} == {"a"}
    away = [one for one in flood if _site(one) == "b"]
    assert {_site(one) for one in flood} == {"a", "b"}
    assert 5 <= len(away) <= 30
    why = {_told(one, "x-kvmesh-site-why").partition(":")[0] for one in away}
    assert why == {"full"}
    trips = (await status(sites.a))["sites"]["trips"]
    assert len(trips) == len(away)
    assert trips[0]["site"] == "b"


async def test_a_site_that_is_cut_off_serves_on_alone(sites: TwoSites) -> None:
    await sites.cut(silent=True)
    async with _client(sites.a) as a, _client(sites.b) as b:
        took_s = await until_lost(sites.a, "b")
        answers = await asyncio.gather(
            *(_ask(one, f"cut {n}") for n in range(10) for one in (a, b))
        )
    flood = await _flood(sites.a, 20)
    await sites.heal()
    await until_usable(sites.a, "b")
    again = await _flood(sites.a, 40)

    assert took_s < 3.0
    assert {one.status_code for one in (*answers, *flood, *again)} == {200}
    assert {_site(one) for one in flood} == {"a"}
    assert "b" in {_site(one) for one in again}


@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_what_is_at_a_site_that_dies_is_served_at_home(sites: TwoSites, how: str) -> None:
    async with _client(sites.a) as client:
        texts = [f"{number} " + f"word{number} " * 1000 for number in range(40)]
        asked = [asyncio.ensure_future(_ask(client, text, 60)) for text in texts]
        await asyncio.sleep(1.5)
        if how == "killed":
            sites.b.kill()
        else:
            await sites.cut(silent=True)
        began_s = time.monotonic()
        took_s = await until_lost(sites.a, "b")
        after = await _ask(client, "after")
        answers = await asyncio.gather(*asked)

    assert took_s < 3.0, time.monotonic() - began_s
    assert _site(after) == "a"
    assert {one.status_code for one in answers} == {200}
    assert all("[DONE]" in one.text for one in answers)
    assert not any('"error"' in one.text for one in answers)


async def test_a_site_without_engines_has_the_other_one_serve(sites: TwoSites) -> None:
    engine = next(one for one in sites.a.processes if one.name == "engine")
    engine.kill()

    async with _client(sites.a) as client:
        answers = [await _ask(client, f"sick {number}") for number in range(6)]

    assert {one.status_code for one in answers} == {200}
    assert {_site(one) for one in answers} == {"b"}


async def test_one_command_runs_two_sites(tmp_path: Path) -> None:
    port = 12_000 + os.getpid() % 18_000
    options = ("--engines", "1", "--buckets", "chat", "--replicas", "1", "--http-port", str(port))
    up = MeshProcess(
        "up",
        f"http://127.0.0.1:{port}",
        ("up", "--sites", "2", *options, "--data-dir", str(tmp_path / "data")),
        tmp_path / "up.log",
    )
    up.start()
    try:
        async with httpx.AsyncClient(base_url=up.url, timeout=10) as client:
            await until_ready(client)

            async def usable() -> bool:
                (other,) = (await client.get("/v1/status")).json()["sites"]["sites"]
                return other["site"] == "site-2" and not other["why_not"]

            await until(usable)
            answer = await _ask(client, "Hello")
    finally:
        up.stop()

    assert _site(answer) == "site-1"
