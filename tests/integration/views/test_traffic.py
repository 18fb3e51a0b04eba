"""What flows through real front doors: rates by model and tenant, errors by kind, a day of it."""

import asyncio
from typing import Any

import httpx
import pytest

from kvmesh.app.meta.command import MetaServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import MetaRouterSettings
from tests.integration.support.failing_engine import (
    answer_status,
    answer_well,
    failing_engines,
    never_answer,
)
from tests.integration.support.live_router import client_of, free_port, router, serving
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration


def chat(model: str, text: str = "hello") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


async def ask(client: httpx.AsyncClient, model: str, tenant: str) -> int:
    headers = {"x-kvmesh-tenant": tenant}
    answer = await client.post("/v1/chat/completions", json=chat(model), headers=headers)
    return answer.status_code


async def overview(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/v1/overview?limit=0")).json()
    return found


async def test_a_router_counts_by_model_tenant_and_kind_of_error() -> None:
    async with (
        failing_engines(1) as engines,
        client_of(
            router(
                [engines[0].url], parity_sample=0, failure=FailureSettings(wait_for_worker_s=0.0)
            )
        ) as client,
    ):
        engine = engines[0]
        engine.answer = answer_well
        good = [await ask(client, "m", "ann") for _ in range(3)]
        engine.answer = answer_status(400)
        bad = await ask(client, "m", "ben")
        engine.answer = never_answer
        leaving = asyncio.create_task(ask(client, "m", "ben"))
        seen = len(engine.prompts)

        async def at_work() -> bool:
            return len(engine.prompts) > seen

        await until(at_work)
        leaving.cancel()

        async def counted() -> bool:
            rows = (await overview(client))["traffic"]
            return bool(rows["errors_per_s"]["499"] > 0.0)

        await until(counted)
        whole = await overview(client)

        wrong = [(await client.get(f"/v1/overview?since={one}")).status_code for one in ("x", "-1")]

    assert (good, bad) == ([200] * 3, 400)
    tenants = {row["tenant"]: row for row in whole["tenants"]}
    assert tenants["ann"]["requests_per_s"] == pytest.approx(
        1.5 * tenants["ben"]["requests_per_s"], rel=0.01
    )
    assert tenants["ann"]["errors_per_s"] == 0.0
    # The client that left is no error of its tenant.
    assert tenants["ben"]["errors_per_s"] == pytest.approx(
        tenants["ben"]["requests_per_s"] / 2, rel=0.01
    )
    (model,) = whole["models"]
    assert model["model"] == "m"
    assert whole["traffic"]["errors_per_s"]["4xx"] > 0.0
    assert wrong == [400, 400]


async def test_a_meta_router_adds_its_replicas_up_and_names_one_that_is_gone() -> None:
    async with failing_engines(1) as engines:
        engines[0].answer = answer_well
        first = router([engines[0].url], parity_sample=0)
        second = router([engines[0].url], parity_sample=0, bucket="code")
        async with first as chat_url, second as code_url:
            urls = {"chat": chat_url, "code": code_url}
            gone = f"http://127.0.0.1:{free_port()}"
            replicas = (*(f"{name}={url}" for name, url in urls.items()), f"old={gone}")
            meta = MetaServer(
                MetaRouterSettings(replica=replicas, http=HttpSettings(http_port=free_port()))
            )
            front = f"http://127.0.0.1:{meta.settings.http.http_port}"
            async with (
                serving(meta.serve, front),
                httpx.AsyncClient(base_url=front, timeout=30.0) as client,
            ):
                for name, url in urls.items():
                    async with httpx.AsyncClient(base_url=url, timeout=30.0) as direct:
                        for _ in range(2):
                            assert await ask(direct, "m", name) == 200

                async def folded() -> bool:
                    seen = await overview(client)
                    there = {row["tenant"] for row in seen["tenants"]} == {"chat", "code"}
                    missing = [one for one in seen["problems"] if one["kind"] == "replica"]
                    return there and len(seen["workers"]) == 2 and bool(missing)

                await until(folded)
                whole = await overview(client)

    (model,) = whole["models"]
    of_tenants = sum(one["requests_per_s"] for one in whole["tenants"])
    assert model["requests_per_s"] == pytest.approx(of_tenants, rel=0.05)
    (missing,) = [one for one in whole["problems"] if one["kind"] == "replica"]
    assert (missing["bucket"], missing["severity"]) == ("old", "critical")
    assert missing["page"] == "runbook#replica-not-ready"
