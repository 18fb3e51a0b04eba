"""The policy of running routers, changed at one replica: tried in windows, kept or returned."""

import asyncio
import contextlib
import itertools
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router import simulated_trial
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.settings.roles import CostSettings, NatsSettings
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.support.live_router import client_of, engine, free_port, router
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

ADMIN = "/admin/policy"
BLIND: dict[str, Any] = {
    "formula": "sglang",
    "weights": {"cache_threshold": 0, "balance_abs_threshold": 100_000},
}
"""It looks at caches alone: of engines that hold as much, a slow one gets its share."""

SLOW = 0.1
PAUSE_S = 0.05
"""Of a client between two requests: what decides is a window's seconds, not how many it has."""

SHARED = "What everybody asks. " * 20
LIKE: dict[str, Any] = {"formula": "predicted-time", "weights": {"contention": 0.41}}


@contextlib.asynccontextmanager
async def engines(*speedups: float) -> AsyncGenerator[list[str]]:
    async with contextlib.AsyncExitStack() as stack:
        wanted = [
            MockerOptions(port=0, kv_events_port=0, replay_port=0, speedup_ratio=one)
            for one in speedups
        ]
        yield [(await stack.enter_async_context(engine(one))).url for one in wanted]


async def complete(client: httpx.AsyncClient, prompt: str, **headers: str) -> httpx.Response:
    body = {"model": "mock", "prompt": prompt, "max_tokens": 2, "stream": True}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await client.post("/v1/completions", json=body, headers=named)
    assert answer.status_code == 200, answer.text
    return answer


async def trial(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(ADMIN)).json()["trial"]
    return found


async def reported(client: httpx.AsyncClient, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until what the router tells of its policy is as wanted."""
    await seen(client, ADMIN, condition)


async def agreed(clients: Sequence[httpx.AsyncClient]) -> list[dict[str, Any]]:
    """Return the trials once their histories are the same, and over."""

    async def over() -> list[dict[str, Any]] | None:
        trials = [await trial(client) for client in clients]
        same = all(one["history"] == trials[0]["history"] for one in trials)
        return trials if same and ended(trials[0]) else None

    trials: list[dict[str, Any]] = await until(over)
    return trials


def knows_both(view: dict[str, Any]) -> bool:
    return bool(view["replicas"] == ["r1", "r2"])


async def send_until(
    clients: Sequence[httpx.AsyncClient], over: Callable[[dict[str, Any]], bool]
) -> set[str | None]:
    """Send requests, twelve at a time, until the last replica's trial is `over`; return what the
    answers said of their arms.
    """
    said: set[str | None] = set()
    numbers = itertools.count()
    enough = asyncio.Event()

    async def send() -> None:
        while not enough.is_set():
            number = next(numbers)
            prompt = f"{SHARED}Question {number}"
            answer = await complete(clients[number % len(clients)], prompt)
            said.add(answer.headers.get("x-kvmesh-policy"))
            await asyncio.sleep(PAUSE_S)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(send())
        await reported(clients[-1], lambda view: over(view["trial"]))
        enough.set()
    return said


def ended(found: dict[str, Any]) -> bool:
    return bool(found["history"]) and found["history"][0]["phase"] != "running"


@contextlib.asynccontextmanager
async def two_replicas(
    nats: NatsSettings, *speedups: float
) -> AsyncGenerator[list[httpx.AsyncClient]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = await stack.enter_async_context(engines(*speedups))
        clients: list[httpx.AsyncClient] = []
        for name in ("r1", "r2"):
            url = await stack.enter_async_context(router(urls, router_id=name, nats=nats))
            client = httpx.AsyncClient(base_url=url, timeout=60)
            clients.append(await stack.enter_async_context(client))
        for client in clients:
            await reported(client, knows_both)
        yield clients


HERDING = {"formula": "overlap-load", "weights": {"weight_cache": 1000, "weight_load": 0}}
"""All goes to the engine that holds most of a prompt, however long its queue is."""

CONTEXTS = [f"Context {number}. " * 200 for number in range(80)]


@pytest.mark.parametrize("simulated", [True, False])
async def test_a_herding_policy_is_returned_from_within_200_of_its_requests(
    simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_trial, "is_lab_installed", lambda: simulated)
    said: Counter[str | None] = Counter()
    numbers, enough = itertools.count(), asyncio.Event()

    async def send(client: httpx.AsyncClient) -> None:
        rng = random.Random(next(numbers))
        while not enough.is_set():
            question = f"{rng.random()} " * 80
            answer = await complete(client, f"{rng.choice(CONTEXTS)}{question}")
            said[answer.headers.get("x-kvmesh-policy")] += 1

    async with engines(0.5, 0.5, 0.5, 0.5) as urls, client_of(router(urls)) as client:
        await asyncio.gather(*(complete(client, one, x_kvmesh_worker_id="w0") for one in CONTEXTS))
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for _ in range(24):
                group.create_task(send(client))
            body = {**HERDING, "window_s": 2, "min_requests": 50}
            assert (await client.put(ADMIN, json=body)).status_code == 200
            await reported(client, lambda view: ended(view["trial"]))
            enough.set()
        (change,) = (await trial(client))["history"]

    assert change["phase"] == "returned"
    assert said["candidate"] <= 200
    assert said["baseline"] >= 20


async def test_a_policy_that_makes_answers_late_is_returned_from_by_all_replicas(
    nats_server: NatsServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_trial, "is_lab_installed", lambda: False)
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with two_replicas(nats, 20.0, SLOW, 20.0) as clients:
        for client, worker in itertools.product(clients, ("w0", "w1", "w2")):
            await complete(client, SHARED, x_kvmesh_worker_id=worker)
        body = {**BLIND, "window_s": 2, "min_requests": 50}
        begun = await clients[0].put(ADMIN, json=body)
        said = await send_until(clients, ended)
        # Both may return at the same time, each with what it saw; one of them counts.
        trials = await agreed(clients)
        status = (await clients[1].get("/v1/status")).json()
        overview = (await clients[1].get("/v1/overview")).json()
        metrics = (await clients[1].get("/metrics")).text
        after = await complete(clients[0], "hello")

    assert begun.status_code == 200
    assert begun.json()["trial"]["share"] == 0.5
    assert "candidate" in said
    (change,) = trials[0]["history"]
    assert (change["phase"], change["policy"]) == (
        "returned", "kv:sglang:balance_abs_threshold=100000:cache_threshold=0"
    )  # fmt: skip
    assert "beyond 1.1 times" in change["steps"][-1]["reason"]
    assert (status["cost"], status["policy"]["policy"]) == ("predicted-time", "kv:predicted-time")
    assert overview["policies"][0]["history"] == trials[1]["history"]
    assert 'kvmesh_policy_changes_total{phase="returned"} 1.0' in metrics
    assert "kvmesh_policy_trial_share 0.0" in metrics
    assert "x-kvmesh-policy" not in after.headers


@contextlib.asynccontextmanager
async def replica(
    name: str, urls: Sequence[str], folder: Path, *arguments: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    port = free_port()
    workers = (f"--worker=w{number}={url}" for number, url in enumerate(urls))
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvmesh", "router", "--router-id", name, "--no-kv-events"),
            *("--http-port", str(port), *workers, *arguments),
            stdout=log,
            stderr=log,
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                yield process, client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_a_good_policy_gets_all_requests_though_the_replica_that_decides_is_killed(
    nats_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    nats = ("--nats-url", nats_server.url, "--namespace", namespace)
    async with (
        engines(20.0, 20.0) as urls,
        replica("r1", urls, tmp_path, *nats) as (process, first),
        replica("r2", urls, tmp_path, *nats) as (_, second),
    ):
        for client in (first, second):
            await reported(client, knows_both)
        bounds = {"ttft_ratio": 3, "tpot_ratio": 3}
        body = {**LIKE, "window_s": 1, "min_requests": 20, "bounds": bounds}
        assert (await second.put(ADMIN, json=body)).status_code == 200
        await send_until([second, first], lambda found: found["window"] >= 3)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await send_until([second], ended)
        found = await trial(second)

    (change,) = found["history"]
    assert (change["phase"], found["policy"]) == ("done", "kv:predicted-time:contention=0.41")
    assert [step["share"] for step in change["steps"]] == [0.5, 1.0, 1.0]
    assert (change["steps"][0]["by"], change["steps"][-1]["by"]) == ("r2", "r2")


async def test_a_change_is_taken_at_once_returned_from_and_explained() -> None:
    async with (
        engines(100.0) as urls,
        client_of(router(urls)) as client,
    ):
        shown = (await client.get(ADMIN)).json()
        at_once = await client.put(ADMIN, json={**BLIND, "at_once": True})
        weighed = (await complete(client, "what now")).headers["x-request-id"]
        back = await client.delete(ADMIN)
        nothing = await client.put(ADMIN, json={"return": True})
        begun = await client.put(ADMIN, json={**BLIND, "window_s": 0.5})
        twice = await client.put(ADMIN, json=LIKE)
        await asyncio.sleep(1.5)
        tried = await complete(client, "what now")
        own = await complete(client, "what now", x_kvmesh_cost="lmetric")
        detail = await client.get(f"/v1/decisions/{tried.headers['x-request-id']}")
        before = await client.get(f"/v1/decisions/{weighed}")
        overview = (await client.get("/v1/overview")).json()

    specs = {one["name"]: one for one in shown["formulas"]["predicted-time"]}
    assert (shown["mode"], shown["formula"]) == ("kv", "predicted-time")
    assert specs["contention"]["upper"] > shown["weights"]["contention"] == 0.4
    assert at_once.json()["formula"] == "sglang"
    assert BLIND["weights"].items() <= at_once.json()["weights"].items()
    assert before.json()["decision"]["policy"] == "sglang"
    assert before.json()["decision"]["arm"] is None
    assert back.json()["formula"] == "predicted-time"
    assert (nothing.status_code, begun.status_code, twice.status_code) == (409, 200, 409)
    assert "nothing to return from" in nothing.json()["error"]["message"]
    assert "on trial since default-0 began it" in twice.json()["error"]["message"]
    assert tried.headers["x-kvmesh-policy"] == "baseline"
    assert "x-kvmesh-policy" not in own.headers
    assert detail.json()["decision"]["arm"] == "baseline"
    assert [one["candidate"] for one in overview["policies"]] == [
        "kv:sglang:balance_abs_threshold=100000:cache_threshold=0"
    ]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"formula": "best"}, "formula 'best' is unknown; use one of prefill-decode, predicted-"),
    ({"formula": "lmetric", "weights": {"hit": 1}}, "no weight 'hit' here; it has no weights"),
    ({"formula": "dynamo", "weights": {"overlap_score_credit": -1}}, "use a number from 0 to"),
    ({"formula": "lmetric", "window_s": 0}, "window_s is 0"),
    ({"formula": "lmetric", "min_requests": 1}, "min_requests is 1; use 20 to"),
    ({"formula": "lmetric", "bounds": {"ttft_ratio": 0.5}}, "bounds.ttft_ratio is 0.5"),
    ({"formula": "file.py:mine"}, "formula 'file.py:mine' is unknown"),
    ({"formula": "lmetric"}, "--model-policy 'model=a*,kv-overlap-score-weight=2'"),
]


async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    model_policy = ("model=a*,kv-overlap-score-weight=2",)
    async with (
        engines(100.0) as urls,
        client_of(router(urls, model_policy=model_policy)) as client,
    ):
        answers = [await client.put(ADMIN, json=body) for body, _ in WRONG]
        found = await trial(client)

    for answer, (_, said) in zip(answers, WRONG, strict=True):
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    assert found["history"] == []


async def test_only_who_may_changes_the_policy(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret", encoding="ascii")
    admission = AdmissionSettings(admin_token_file=token)
    async with (
        engines(100.0) as urls,
        client_of(router(urls, admission=admission)) as client,
    ):
        refused = await client.put(ADMIN, json=LIKE)
        returned = await client.delete(ADMIN)
        shown = {"authorization": "Bearer secret"}
        taken = await client.put(ADMIN, json=LIKE, headers=shown)
    async with (
        engines(100.0) as urls,
        client_of(router(urls)) as client,
    ):
        far = await client.put(ADMIN, json=LIKE, headers={"x-forwarded-for": "10.0.0.1"})

    assert [one.status_code for one in (refused, returned, taken, far)] == [401, 401, 200, 403]


async def test_a_router_that_goes_by_no_formula_has_none_to_change() -> None:
    async with (
        engines(100.0) as urls,
        client_of(router(urls, cost=CostSettings(router_mode="round-robin"))) as client,
    ):
        answer = await client.put(ADMIN, json=LIKE)

    assert answer.status_code == 409
    assert "mode is round-robin, which goes by no formula" in answer.json()["error"]["message"]
