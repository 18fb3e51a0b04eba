"""Routers whose token ids are, or are not, those of their engines."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.settings.roles import CostSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import client_of, router
from tests.integration.support.live_router import mockers as running
from tests.integration.support.waiting import seen
from tests.unit.app.prompts.tokenizer_models import write_model

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
SYSTEM = {"role": "system", "content": "You answer what everybody asks about, patiently. " * 30}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "small")


@contextlib.asynccontextmanager
async def engines(tokenizer: str | None, count: int = 2) -> AsyncIterator[list[Mocker]]:
    async with running(count, tokenizer=tokenizer) as found:
        yield found


@contextlib.asynccontextmanager
async def routed(mockers: list[Mocker], **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    urls = [mocker.url for mocker in mockers]
    cost = CostSettings(predict_ttl_s=0.0)
    async with client_of(router(urls, kv_events=True, cost=cost, **settings)) as client:
        yield client


async def post(client: httpx.AsyncClient, *messages: dict[str, str]) -> httpx.Response:
    body = {"model": "mock", "max_tokens": 4, "messages": [SYSTEM, *messages]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": f"{text} " * 20}


async def until(
    client: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until the state of token ids in /v1/status is as wanted."""
    status = await seen(client, "/v1/status", lambda status: holds(status["tokens"]))
    tokens: dict[str, Any] = status["tokens"]
    return tokens


def batches(status: dict[str, Any], worker: str) -> int:
    """Return how many batches of a worker's events were read."""
    return sum(one["events"]["batches"] for one in status["mesh"]["engines"][worker].values())


async def test_ids_that_agree_are_routed_by(model: str) -> None:
    async with engines(model) as mockers, routed(mockers, tokenizer=Path(model)) as client:
        for number in range(3):
            await post(client, user(f"{number}"))
        reported = await until(client, lambda reported: reported["parity"]["compared"] == 3)
        ready = (await client.get("/ready")).json()
        metrics = (await client.get("/metrics")).text

    assert reported["parity"]["disagreements"] == 0
    assert reported["tokenizer"]["plain_chats"] >= 3
    assert (reported["tokenizer"]["other_chats"], reported["tokenizer"]["unlike"]) == (0, "")
    assert 'kvmesh_chats_total{prompt="other"} 0.0' in metrics
    assert 'kvmesh_prompt_segments_total{text="new"}' in metrics
    assert "warnings" not in ready


async def test_ids_that_differ_are_not_routed_by_and_it_is_said(model: str) -> None:
    async with engines(model) as mockers, routed(mockers) as client:
        first = await post(client, user("one"))
        reported = await until(client, lambda reported: reported["parity"]["disagreements"] > 0)
        # From now on by bytes, until the engine has told its own ids of the earlier messages.
        second = await post(client, user("two"))
        third = await post(client, user("two"), {"role": "assistant", "content": "?"}, user("more"))
        ready = (await client.get("/ready")).json()
        metrics = (await client.get("/metrics")).text

    assert first.headers["x-kvmesh-overlap-blocks"] == "0"
    assert reported["parity"]["untrusted"] == ["mock"]
    # Both hold what the messages have in common with the third's.
    holders = {first.headers["x-kvmesh-worker"], second.headers["x-kvmesh-worker"]}
    assert third.headers["x-kvmesh-worker"] in holders
    assert int(third.headers["x-kvmesh-overlap-blocks"]) > 10
    assert "our token ids of model mock are not its engine's" in ready["warnings"][0]
    assert 'kvmesh_token_parity_doubted{model="mock"} 1.0' in metrics


async def test_what_the_engine_told_of_earlier_messages_is_exact(model: str) -> None:
    async with engines(model) as mockers, routed(mockers) as client:
        await post(client, user("zero"))
        await until(client, lambda reported: reported["parity"]["disagreements"] > 0)
        turns = [user("one")]
        answer = await post(client, *turns)
        # The system message alone, and the whole chat; and its engine's events came.
        await until(client, lambda reported: reported["prefixes"]["known"] >= 2)
        home = answer.headers["x-kvmesh-worker"]
        publisher = mockers[int(home[1:])].ranks[0].publisher
        assert publisher
        await seen(client, "/v1/status", lambda told: batches(told, home) == publisher.next_seq)
        turns += [{"role": "assistant", "content": "Well."}, user("two")]
        follow = await post(client, *turns)
        reported = await until(client, lambda reported: reported["prefixes"]["hits"] > 0)

    details = follow.json()["usage"]["prompt_tokens_details"]
    foreseen, cached = (
        int(follow.headers["x-kvmesh-overlap-blocks"]),
        details["cached_tokens"] // 16,
    )
    assert follow.headers["x-kvmesh-worker"] == home
    # The engine cached its answer's first tokens too: at most one block more than the prefix.
    assert cached - 1 <= foreseen <= cached
    assert foreseen > 20
    assert reported["prefixes"]["unstable"] == 0


async def test_nobody_is_asked_when_told_so(model: str) -> None:
    async with engines(model, 1) as mockers, routed(mockers, parity_sample=0) as client:
        for number in range(3):
            await post(client, user(f"{number}"))
        reported = (await client.get("/v1/status")).json()["tokens"]

    assert (reported["parity"]["compared"], reported["untold"], reported["unanswered"]) == (0, 0, 0)
