"""An engine that joins a fleet is given what everybody asks for before it serves."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.settings.requests import TenantSettings
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

SHARED = "You are the assistant of a company with many rules. " * 80
QUESTIONS = 60
LEAST_SHARE = 0.8
SHARE = 0.5


async def ask(
    client: httpx.AsyncClient, number: int, worker: str = "", tenant: str = "", rules: str = ""
) -> dict[str, int]:
    """Return the usage of an answer to a question behind the shared prompt."""
    prompt = f"{rules}{SHARED} Question {number}: {'why? ' * 8}"
    body = {"model": "mock", "max_tokens": 1, "prompt": prompt}
    headers = {"x-kvmesh-worker-id": worker} if worker else {}
    headers |= {"x-kvmesh-tenant": tenant} if tenant else {}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {"prompt": usage["prompt_tokens"], "cached": cached}


async def warmed_tokens(client: httpx.AsyncClient) -> int | None:
    text = (await client.get("/metrics")).text
    lines = [one for one in text.splitlines() if one.startswith("kvmesh_warmed_tokens_total ")]
    return int(float(lines[0].split()[1])) or None if lines else None


class Askers:
    """Somebody who asks one question after another."""

    def __init__(self, client: httpx.AsyncClient, *tenants: str) -> None:
        self.asked = 0
        self._client = client
        self._tenants = tenants or ("",)
        self._task = asyncio.ensure_future(self._ask())

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _ask(self) -> None:
        while True:
            for tenant in self._tenants:
                await ask(self._client, self.asked, tenant=tenant, rules=tenant)
            self.asked += 1
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("share", [0.5, 0.0])
async def test_a_newcomer_hits_as_the_fleet_does(share: float, tmp_path: Path) -> None:
    file = tmp_path / "workers.txt"
    async with mockers(2, num_gpu_blocks_override=4096, block_size=16) as (first, late):
        file.write_text(f"first={first.url}\n")
        running = router([], discover=(f"file:{file}",), kv_events=True, warm_share=share)
        async with client_of(running) as client:
            await seen(client, "/v1/status", lambda status: len(status["workers"]) == 1)
            askers = Askers(client)
            other = {"model": "mock", "max_tokens": 1, "prompt": "Something else. " * 1200}
            assert (await client.post("/v1/completions", json=other)).status_code == 200
            await until(lambda: askers.asked >= QUESTIONS)

            if not share:
                await askers.stop()
            file.write_text(f"first={first.url}\nlate={late.url}\n")
            await seen(client, "/v1/status", lambda status: len(status["workers"]) > 1)
            if share:
                assert await until(lambda: warmed_tokens(client))
                await askers.stop()
            usage = await ask(client, QUESTIONS, "late")

    assert (usage["cached"] / usage["prompt"] >= LEAST_SHARE) == bool(share)


async def test_each_tenants_prompts_are_given_in_its_namespace(tmp_path: Path) -> None:
    file, secret = tmp_path / "workers.txt", tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    apart = TenantSettings(tenant_secret_file=secret)
    async with mockers(2, num_gpu_blocks_override=8192, block_size=16) as (first, late):
        file.write_text(f"first={first.url}\n")
        running = router(
            [], discover=(f"file:{file}",), kv_events=True, warm_share=SHARE, tenant=apart
        )
        async with client_of(running) as client:
            await seen(client, "/v1/status", lambda status: len(status["workers"]) == 1)
            askers = Askers(client, "ann", "ben")
            for number in range(2):
                other = {"model": "mock", "max_tokens": 1, "prompt": f"{number} else. " * 1900}
                assert (await client.post("/v1/completions", json=other)).status_code == 200
            await until(lambda: askers.asked >= QUESTIONS)
            file.write_text(f"first={first.url}\nlate={late.url}\n")
            await seen(client, "/v1/status", _both_serve)
            await askers.stop()
            own = [await ask(client, QUESTIONS, "late", one, one) for one in ("ann", "ben")]
            foreign = await ask(client, QUESTIONS, "late", "ben", "ann")

    assert [one["cached"] / one["prompt"] >= LEAST_SHARE for one in own] == [True, True]
    assert foreign["cached"] == 0


def _both_serve(status: dict[str, Any]) -> bool:
    return [one["usable"] for one in status["workers"]] == [True, True]
