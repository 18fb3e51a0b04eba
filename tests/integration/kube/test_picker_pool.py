"""A picker of an InferencePool: its pods are picked, its gateway's headers are obeyed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from kvmesh.app.router.picker_command import picker_server
from kvmesh.settings.features import PoolSettings
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.picker import GrpcSettings, PickerSettings
from kvmesh.settings.requests import AdmissionSettings, FailureSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.kube import api_server
from tests.integration.kube.api_server import objective, pod, pool
from tests.integration.picker.asking import Gateway, RefusedError, chat, serve
from tests.integration.support import live_router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PODS, POOLS = api_server.pods_path(), api_server.pools_path()
OBJECTIVES = api_server.objectives_path()


@contextlib.asynccontextmanager
async def picking(
    folder: Path, monkeypatch: pytest.MonkeyPatch, admission: AdmissionSettings, **engine: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient, str]]:
    """Serve a pool of one pod by a picker; yield a gateway, a client of the picker's views, and the
    pod's address.
    """
    options = MockerOptions(port=0, kv_events_port=0, replay_port=0, **engine)
    async with live_router.engine(options) as mocker, api_server.running() as (api, api_port):
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(folder, api_port)))
        port = int(mocker.url.rpartition(":")[2])
        await api.put(OBJECTIVES, objective("batch", -1))
        await api.put(POOLS, pool("chat", port))
        await api.put(PODS, pod("vllm-0", "127.0.0.1"))
        http, grpc = live_router.free_port(), live_router.free_port()
        server = picker_server(picker_settings(grpc, http, admission))
        gateway = Gateway(f"127.0.0.1:{grpc}")
        try:
            async with (
                live_router.serving(server.serve, f"http://127.0.0.1:{http}") as url,
                httpx.AsyncClient(base_url=url, timeout=30) as client,
            ):
                yield gateway, client, f"127.0.0.1:{port}"
        finally:
            await gateway.close()


def picker_settings(grpc: int, http: int, admission: AdmissionSettings) -> PickerSettings:
    return PickerSettings(
        grpc=GrpcSettings(grpc_port=grpc, notice_s=0.0),
        router=RouterSettings(
            kv_events=False,
            pool=PoolSettings(inference_pool="llm/chat"),
            admission=admission,
            http=HttpSettings(http_port=http, drain_s=1.0),
            failure=FailureSettings(wait_for_worker_s=0.1),
        ),
    )


async def test_a_pod_is_picked_and_a_fairness_id_is_a_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with picking(tmp_path, monkeypatch, AdmissionSettings(), timing_profile="instant") as (
        gateway,
        client,
        address,
    ):
        names = {
            "x-gateway-inference-fairness-id": "team-a",
            "x-gateway-model-name-rewrite": "mock",
        }
        draft = chat("hello").replace(b'"mock"', b'"draft"')
        async with gateway.ask(draft, names) as asked:
            assert (asked.endpoint, asked.metadata) == (address, address)
            assert asked.body == chat("hello")
            assert asked.headers["content-length"] == str(len(asked.body))
        with pytest.raises(RefusedError) as refused:
            async with gateway.ask(chat("hello"), {"x-llm-d-slo-ttft-ms": "soon"}):
                pass
        decisions = (await client.get("/v1/decisions")).text

    assert refused.value.status == 400
    assert b"x-llm-d-slo-ttft-ms" in refused.value.body
    assert "team-a" in decisions


async def test_a_sheddable_request_is_refused_where_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = AdmissionSettings(max_backlog_ms=1.0, shed_negative=True, max_wait_s=20.0)
    async with picking(tmp_path, monkeypatch, admission, speedup_ratio=0.2) as (gateway, client, _):
        long = asyncio.ensure_future(serve(gateway, client, chat("a b " * 4000, tokens=1), {}))
        await until(lambda: has_decided(client))
        patient = asyncio.ensure_future(serve(gateway, client, chat("hello", tokens=1), {}))

        names = {"x-gateway-inference-objective": "batch"}
        with pytest.raises(RefusedError) as refused:
            await serve(gateway, client, chat("hello", tokens=1), names)

        assert refused.value.status == 429
        assert refused.value.headers["retry-after"]
        assert b'"request_shed"' in refused.value.body
        assert b"priority -1 does not wait" in refused.value.body
        await asyncio.gather(long, patient)


async def has_decided(client: httpx.AsyncClient) -> bool:
    return bool((await client.get("/v1/status")).json()["requests"]["requests"])


async def test_through_a_real_envoy_requests_follow_the_pods_and_models_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_router.mockers(2) as engines, contextlib.AsyncExitStack() as stack:
        first, second = (int(one.url.rpartition(":")[2]) for one in engines)
        api, api_port = await stack.enter_async_context(api_server.running())
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, api_port)))
        await api.put(POOLS, pool("chat", first, second))
        await api.put(PODS, member("vllm-0", first))
        await api.put(PODS, member("vllm-1", second, ready=False))
        grpc, views = live_router.free_port(), live_router.free_port()
        settings = picker_settings(grpc, views, AdmissionSettings())
        url = await stack.enter_async_context(
            live_router.serving(picker_server(settings).serve, f"http://127.0.0.1:{views}")
        )
        known = tuple(Address("127.0.0.1", port) for port in (first, second))
        options = GatewayOptions(pickers=(Address("127.0.0.1", grpc),), endpoints=known)
        envoy = EnvoyServer(options, tmp_path)
        stack.push_async_callback(envoy.stop)
        client = httpx.AsyncClient(base_url=await envoy.start(), timeout=30)
        await stack.enter_async_context(client)
        draft = chat("hello" * 20_000, stream=False).replace(b'"mock"', b'"a-longer-draft"')
        names = {"x-gateway-model-name-rewrite": "mock", "content-type": "application/json"}

        async def served() -> str:
            answer = await client.post("/v1/chat/completions", content=draft, headers=names)
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == "mock"
            return answer.headers["x-kvmesh-worker"]

        assert await served() == f"vllm-0-{first}"
        await api.put(PODS, member("vllm-1", second))
        await api.delete(PODS, "vllm-0")
        async with httpx.AsyncClient(base_url=url) as looker:
            await until(lambda: has_only(looker, f"vllm-1-{second}"))
        assert await served() == f"vllm-1-{second}"
        await api.delete(PODS, "vllm-1")
        async with httpx.AsyncClient(base_url=url) as looker:
            await until(lambda: has_only(looker))
        refused = await client.post("/v1/chat/completions", content=draft, headers=names)

    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "no_worker"


def member(name: str, port: int, *, ready: bool = True) -> dict[str, Any]:
    made = pod(name, "127.0.0.1", ready=ready)
    made["metadata"]["annotations"]["llm-d.ai/active-ports"] = str(port)
    return made


async def has_only(client: httpx.AsyncClient, *workers: str) -> bool:
    status = (await client.get("/v1/status")).json()
    return {one["worker"] for one in status["workers"] if one["usable"]} == {*workers}
