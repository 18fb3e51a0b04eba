"""What requests wish of a router, over HTTP: policy, workers, labels, taints, by header or body."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.settings.roles import CostSettings
from tests.integration.support.live_router import client_of, router
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve

pytestmark = pytest.mark.integration


@pytest.fixture
async def engines() -> AsyncIterator[list[str]]:
    made = [ReplayEndpoint(workers=1) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in made:
            await stack.enter_async_context(serve(engine))
        marks = (",label=gpu:h100", ",taint=batch", "")
        yield [engine.url + mark for engine, mark in zip(made, marks, strict=True)]


async def ask(client: httpx.AsyncClient, wishes: Any = None, **headers: str) -> httpx.Response:
    turns = [{"role": "user", "content": "Hello"}]
    body: dict[str, Any] = {"model": "mock", "messages": turns, "stream": True, "max_tokens": 2}
    if wishes is not None:
        body["kvmesh"] = wishes
    names = {f"x-kvmesh-{name.replace('_', '-')}": value for name, value in headers.items()}
    return await client.post("/v1/chat/completions", json=body, headers=names)


def worker(answer: httpx.Response) -> str:
    """Return whom the router chose; the tiny engines name workers of their own before."""
    return answer.headers["x-kvmesh-worker"].rpartition(", ")[2]


async def test_labels_taints_and_allow_lists_decide_who_may(engines: list[str]) -> None:
    async with client_of(router(engines, model_policy=("model=mock,kv-cost=lmetric",))) as client:
        anywhere = {worker(await ask(client, router_mode="round-robin")) for _ in "1234"}
        labelled = await ask(client, labels="gpu:h100")
        tolerant = await ask(client, {"tolerations": ["batch"], "allowed_workers": ["w1"]})
        nobody = await ask(client, labels="gpu:h100", allowed_workers="w1,w2")
        pinned = await ask(client, {"worker": "w2"})
        wrong = await ask(client, {"cost": "cheap"})
        lacking = await ask(client, overlap_score_weight="2")
        decisions = (await client.get("/v1/decisions")).json()["decisions"]
        dearer = await client.post(
            "/v1/route",
            json={"messages": [], "kvmesh": {"cost": "dynamo", "overlap_score_weight": 3}},
        )

    assert anywhere == {"w0", "w2"}
    assert worker(labelled) == "w0"
    assert worker(tolerant) == "w1"
    assert nobody.status_code == 503
    assert "w0: not allowed for this request" in nobody.json()["error"]["message"]
    assert "w2: has no label gpu:h100" in nobody.json()["error"]["message"]
    assert worker(pinned) == "w2"
    assert (wrong.status_code, lacking.status_code) == (400, 400)
    assert "'cheap' is unknown; use one of prefill-decode" in wrong.json()["error"]["message"]
    assert "lmetric: there is no weight 'overlap_score_weight'" in lacking.text
    assert {row["policy"] for row in decisions} == {"round-robin", "lmetric"}
    assert dearer.json()["policy"] == "dynamo"
    assert "3.0 *" in str(dearer.json())


async def test_a_prompt_cache_key_brings_prompts_that_differ_to_one_worker(
    engines: list[str],
) -> None:
    plain = [engine.partition(",")[0] for engine in engines]
    async with client_of(router(plain)) as client:

        async def sent(text: str, **more: Any) -> str:
            turns = [{"role": "user", "content": text}]
            body = {"model": "mock", "messages": turns, "max_tokens": 2} | more
            return worker(await client.post("/v1/chat/completions", json=body))

        without = {await sent(f"{number} asks for something else") for number in range(6)}
        # Scanned, parsed, and with what is no retention.
        forms: list[dict[str, Any]] = [{}, {"kvmesh": {}}, {"prompt_cache_retention": 7}]
        keyed = {
            await sent(f"{number} wants to know", prompt_cache_key="app", **forms[number % 3])
            for number in range(12)
        }

    assert (len(without), len(keyed)) == (3, 1)


async def test_clients_may_be_forbidden_to_choose(engines: list[str]) -> None:
    async with client_of(router(engines, client_overrides=False)) as client:
        answers = [await ask(client, worker_id="w1", router_mode="direct") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert {worker(answer) for answer in answers} <= {"w0", "w2"}


@pytest.mark.parametrize("marked", [False, True])
async def test_a_mode_that_looks_at_no_prompt_reads_none_unless_asked(
    engines: list[str], *, marked: bool
) -> None:
    """Workers with labels or taints are not plain."""
    workers = engines if marked else [engine.partition(",")[0] for engine in engines]
    settings: dict[str, Any] = {
        "cost": CostSettings(router_mode="round-robin"),
        "parity_sample": 0,
    }
    text = "Hello, is anybody there? " * 20
    turns = [{"role": "user", "content": text}]
    body = {"model": "mock", "messages": turns, "max_tokens": 2}
    async with client_of(router(workers, **settings)) as client:
        path, asks_kv = "/v1/chat/completions", {"x-kvmesh-router-mode": "kv"}
        answers = [await client.post(path, json=body) for _ in range(2)]
        answers.append(await client.post(path, json=body, headers=asks_kv))
        rows = (await client.get("/v1/decisions")).json()["decisions"]
        explained = (await client.post("/v1/route", json=body)).json()
        detail = (await client.get(f"/v1/decisions/{rows[-1]['request_id']}")).json()
        overview = (await client.get("/v1/overview")).json()

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    size = len(answers[0].request.content)
    reported = sorted((row["policy"], row["estimated"], row["prompt_tokens"]) for row in rows)
    plain = explained["prompt_tokens"]
    assert plain > len(text)
    blind = ("round-robin", True, size // 4)
    assert reported == [("predicted-time", False, plain), blind, blind]
    assert "estimated from the size of the body" in detail["note"]
    assert not overview["prefixes"]
