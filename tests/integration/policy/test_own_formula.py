"""A cost formula of one's own in live routers: it decides, books, fails, and is done without."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kvmesh.core.cost.own import FAULTS_OFF
from kvmesh.errors import ConfigError
from kvmesh.settings.requests import DecisionSettings
from kvmesh.settings.roles import CostSettings
from kvmesh_lab.replay.policy import policy_headers
from tests.integration.support.gated_engine import GatedEngine, gated_engine
from tests.integration.support.live_router import client_of, router
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "my_cost.py") + ":my_cost"
PREFIX = "warm prefix " * 80

FAILING = """
def moody(candidate, fleet):
    kind = candidate.prompt_tokens // 1000
    if kind == 3:
        return 1 / (kind - 3)
    if kind == 4:
        while True:
            try:
                len("")
            except Exception:
                pass
    if kind == 5:
        return float("nan")
    return -candidate.active_requests - candidate.prompt_tokens  # the worst: the busiest worker
"""
"""Fails for prompts of 3,000 to 5,999 tokens, which the trial at start has none of."""


@pytest.fixture
async def engines() -> AsyncIterator[list[GatedEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(gated_engine()) for _ in range(4)]


def chat(content: str, **wishes: object) -> dict[str, object]:
    turns = [{"role": "user", "content": content}]
    return {"model": "mock", "stream": True, "max_tokens": 60, "messages": turns, "kvmesh": wishes}


async def burst(url: str, engines: list[GatedEngine], cost: str) -> list[int]:
    """Send 48 requests at once; return how many each worker answered, most first."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        asked = [
            asyncio.ensure_future(
                client.post(
                    "/v1/chat/completions",
                    json=chat(PREFIX + f"{cost} {number} " * 40, cost=cost),
                )
            )
            for number in range(48)
        ]
        try:
            await until(lambda: sum(engine.waiting for engine in engines) >= len(asked))
            for engine in engines:
                while engine.waiting:
                    engine.let_go()
            answers = await asyncio.gather(*asked)
        finally:
            # Else a router that ends waits for what is left.
            for one in asked:
                one.cancel()
    assert {one.status_code for one in answers} == {200}
    return sorted(Counter(one.headers["x-kvmesh-worker"] for one in answers).values(), reverse=True)


async def test_48_requests_at_once_are_spread_as_by_a_published_formula(
    engines: list[GatedEngine],
) -> None:
    urls = [engine.url for engine in engines]

    # A prefix of 60 blocks is worth three requests, however slowly those 48 come in.
    cost = CostSettings(kv_cost=f"{EXAMPLE}:per_request=20")
    async with router(urls, cost=cost) as url:
        own = await burst(url, engines, "my_cost.py:my_cost")
        published = await burst(url, engines, "prefill-decode")

    assert sum(own) == sum(published) == 48
    assert max(own) - min(own) <= 6, own
    assert max(published) - min(published) <= 6, published


async def decided(client: httpx.AsyncClient, tokens: int, **wishes: object) -> dict[str, object]:
    """Ask what would be decided about a prompt of about so many tokens."""
    body = chat("x" * tokens, **wishes)
    answer = await client.post("/v1/route", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def metric(client: httpx.AsyncClient, line: str) -> float:
    page = (await client.get("/metrics")).text
    return next(float(one.split(" ")[-1]) for one in page.splitlines() if one.startswith(line))


async def until_warned(client: httpx.AsyncClient, words: str) -> str:
    page = await seen(client, "/ready", lambda page: words in " ".join(page.get("warnings", [])))
    return " ".join(page["warnings"])


async def test_a_formula_that_fails_is_done_without_told_and_at_last_switched_off(
    engines: list[GatedEngine], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moody.py"
    file.write_text(FAILING)
    failed = 'kvmesh_formula_decisions_total{formula="moody.py:moody",kind="failed"'

    async with (
        client_of(
            router([engine.url for engine in engines], cost=CostSettings(kv_cost=f"{file}:moody"))
        ) as client,
    ):
        well = await decided(client, 300)
        raised, looped, nan = [await decided(client, tokens) for tokens in (3300, 4300, 5300)]
        warned = await until_warned(client, "moody.py:moody failed")
        overview = (await client.get("/v1/overview")).json()
        again = await decided(client, 300)
        counted = await metric(client, failed)
        *_, off = [await decided(client, 3300) for _ in range(FAULTS_OFF)]
        warned_off = await until_warned(client, "is off")
        after = await decided(client, 300)
        is_off = await metric(client, 'kvmesh_formula_off{formula="moody.py:moody"')

    assert well["policy"] == again["policy"] == "moody.py:moody"
    assert str(well["formula"]).startswith("moody.py:moody = moody.py:moody(prompt_tokens, active")
    for decision, fault in (
        (raised, "ZeroDivisionError"),
        (looped, "took longer than"),
        (nan, "nan"),
    ):
        assert decision["policy"] == "predicted-time"
        assert str(decision["why"]).startswith("moody.py:moody failed: ")
        assert fault in str(decision["why"])
        assert "predicted-time decided" in str(decision["why"])
    assert counted == 3
    assert "predicted-time decided" in warned
    assert any("moody.py:moody" in line for line in overview["warnings"])
    assert off["policy"] == after["policy"] == "predicted-time"
    assert "is off after 5 failures in a row" in str(after["why"])
    assert "until this process is restarted" in warned_off
    assert is_off == 1
    assert "cost formula failed" in capfd.readouterr().out


async def test_clients_may_name_a_loaded_formula_and_no_file(engines: list[GatedEngine]) -> None:
    shadows = DecisionSettings(shadow_policy=(f"kv:{EXAMPLE}:per_request=3",))
    (_, mode), (_, cost) = policy_headers(f"kv:{EXAMPLE}")

    async with client_of(router([engine.url for engine in engines], decision=shadows)) as client:
        named = await decided(client, 300, mode=mode.decode(), cost=cost.decode())
        path = await client.post("/v1/route", json=chat("x", cost=EXAMPLE))
        lacking = await client.post(
            "/v1/route", json=chat("x", cost=cost.decode(), overlap_score_weight=2)
        )
        asked = asyncio.ensure_future(client.post("/v1/chat/completions", json=chat("x")))
        await until(lambda: any(engine.waiting for engine in engines))
        next(engine for engine in engines if engine.waiting).let_go()
        await asked
        judged = f'kvmesh_shadow_decisions_total{{kind="judged",policy="kv:{EXAMPLE}'
        assert await until(lambda: metric(client, judged)) == 1

    assert (mode, cost) == (b"kv", b"my_cost.py:my_cost")
    assert named["policy"] == "my_cost.py:my_cost"
    assert named["weights"] == {"hit": 1.0, "per_request": 2.0, "crowd": 32}
    assert "my_cost.py:my_cost(block_size=16, prompt_tokens=" in str(named["candidates"])
    assert "; hit=1, per_request=2, crowd=32)" in str(named["candidates"])
    assert path.status_code == lacking.status_code == 400
    assert "a file is read only where its operator names it" in path.json()["error"]["message"]
    assert "'overlap_score_weight' here; it has hit (0 to 10" in lacking.json()["error"]["message"]


async def test_a_weight_beyond_its_range_ends_the_start() -> None:
    cost = CostSettings(kv_cost=f"{EXAMPLE}:hit=11")

    with pytest.raises(ConfigError, match="weight hit is 11: use a number from 0 to 10"):
        async with router(["http://127.0.0.1:1"], cost=cost):
            pass
