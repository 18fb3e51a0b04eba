"""Alarms over real routers: engines are made to fail, and Prometheus' rules read what was scraped.

A scrape each `SCRAPE_S` stands for 15 s, so what fails here for 5 s fails for 5 minutes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import CostSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.alarm_history import ALERTS, AlarmHistory, alarm_names, promtool
from tests.integration.support.live_router import client_of, meta_router, mockers, router

pytestmark = pytest.mark.integration

SCRAPE_S = 0.25
BEFORE, DURING, AFTER = 8, 20, 26
CLIENTS = 2
PAUSE_S = 0.05
BURST = 400
"""More requests at once than the retry budget has saved up retries."""


class Experiment(msgspec.Struct, frozen=True):
    """`fault` at the first `engines` of two. `alarms` must fire meanwhile, `others` may."""

    fault: str
    alarms: frozenset[str]
    engines: int = 1
    burst: bool = False
    others: frozenset[str] = frozenset()


FAILS = frozenset({"KvmeshWorkerFails"})
LEFT_OUT = frozenset({"KvmeshWorkerLeftOut"})
EXPERIMENTS = {
    "500": Experiment("1.0:500", LEFT_OUT, others=FAILS),
    "502": Experiment("1.0:502", LEFT_OUT, others=FAILS),
    "429": Experiment("1.0:429", frozenset({"KvmeshWorkerOverloaded"})),
    "reset": Experiment("1.0:reset", LEFT_OUT, others=FAILS),
    "hang": Experiment("1.0:hang", frozenset({"KvmeshWorkersHang"}), others=FAILS | LEFT_OUT),
    "all": Experiment(
        "1.0:500",
        LEFT_OUT | {"KvmeshErrorsPassedOn", "KvmeshFailingWorkersUsed", "KvmeshRetriesRefused"},
        engines=2,
        burst=True,
        others=FAILS,
    ),
}


async def ask(client: httpx.AsyncClient, number: int) -> None:
    body = {"model": "mock", "max_tokens": 1, "prompt": f"{number} loaves of bread. " * 8}
    await client.post("/v1/completions", json=body)


@contextlib.asynccontextmanager
async def load(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Have some clients ask one thing after the other."""

    async def keep_asking(mine: int) -> None:
        number = mine
        while True:
            await ask(client, number)
            number += CLIENTS
            await asyncio.sleep(PAUSE_S)

    asking = [asyncio.create_task(keep_asking(mine)) for mine in range(CLIENTS)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def record(client: httpx.AsyncClient, history: AlarmHistory, scrapes: int) -> int:
    """Scrape so often; return when the last was, as the alarms count."""
    for _ in range(scrapes):
        await history.scrape(client)
        await asyncio.sleep(SCRAPE_S)
    return history.last_s()


async def all_serve(client: httpx.AsyncClient) -> bool:
    workers = (await client.get("/v1/overview?limit=0")).json()["workers"]
    return all(one["usable"] and one["stage"] in {"in", "trickle"} for one in workers)


async def run(one: Experiment, folder: Path) -> list[set[str]]:
    """Return which alarms fire before, during and after the fault."""
    history = AlarmHistory(bucket="chat", job="routers", instance="r0")
    settings: dict[str, Any] = {
        "failure": FailureSettings(hang_s=0.2),
        # In its turn a worker fails at once; by cost few requests would go where others failed.
        "cost": CostSettings(router_mode="round-robin"),
    }
    async with (
        mockers(2) as engines,
        client_of(router([engine.url for engine in engines], bucket="chat", **settings)) as client,
        load(client),
    ):
        times = [await record(client, history, BEFORE)]
        await set_faults(engines[: one.engines], [one.fault])
        if one.burst:
            await asyncio.gather(*(ask(client, number) for number in range(BURST)))
        times.append(await record(client, history, DURING))
        await set_faults(engines, [])
        async with asyncio.timeout(45):
            while not await all_serve(client):
                await record(client, history, 1)
        times.append(await record(client, history, AFTER))
    return history.firing(folder, *times)


async def set_faults(engines: list[Mocker], faults: list[str]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for engine in engines:
            answer = await client.post(f"{engine.url}/kvmesh/faults", json={"fail": faults})
            assert answer.status_code == 200


@pytest.mark.timeout(180)
@pytest.mark.nightly
async def test_every_way_to_fail_raises_its_alarm_which_ends_with_it(tmp_path: Path) -> None:
    promtool("--version")
    folders = {name: tmp_path / name for name in EXPERIMENTS}
    for folder in folders.values():
        folder.mkdir()

    found = dict(
        zip(
            EXPERIMENTS,
            await asyncio.gather(*(run(one, folders[name]) for name, one in EXPERIMENTS.items())),
            strict=True,
        )
    )

    fired = {name: during - EXPERIMENTS[name].others for name, (_, during, _) in found.items()}
    assert fired == {name: one.alarms for name, one in EXPERIMENTS.items()}
    assert [name for name, (before, _, _) in found.items() if before] == []
    assert set[str]().union(*(during for _, during, _ in found.values())) >= FAILS
    # What a worker's failures cost falls by half in 10 s: an age for alarms that live so fast.
    assert {name: after - FAILS for name, (_, _, after) in found.items() if after - FAILS} == {}


@pytest.mark.timeout(120)
async def test_a_meta_router_whose_replicas_are_gone_raises_alarms(tmp_path: Path) -> None:
    promtool("--version")
    history = AlarmHistory(job="meta-router", instance="m0")
    async with mockers(1) as engines, contextlib.AsyncExitStack() as routers:
        urls = [
            await routers.enter_async_context(router([engines[0].url], bucket="chat", drain_s=0.0))
            for _ in range(2)
        ]
        replicas = [f"chat={url}" for url in urls]
        async with (
            client_of(meta_router(replicas, wait_for_replica_s=0.0)) as client,
            load(client),
        ):
            before_s = await record(client, history, BEFORE)
            await routers.aclose()
            during_s = await record(client, history, DURING)

    before, during = history.firing(tmp_path, before_s, during_s)

    assert before == set()
    assert during == {"KvmeshFrontDoorFails", "KvmeshReplicaLeftOut"}


def test_each_alarm_fires_in_the_rules_own_test() -> None:
    cases = yaml.safe_load(ALERTS.with_suffix(".test.yml").read_text())["tests"]
    expected = {
        sample["labels"]
        for case in cases
        for test in case["promql_expr_test"]
        for sample in test["exp_samples"]
        if sample["value"] > 0
    }

    assert {name for name in alarm_names() if f'{{alertname="{name}"}}' not in expected} == set()
