"""Sidecars tell routers how their engines share requests between prefill and decode."""

import contextlib

import httpx
import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import ConfigError
from kvmesh.settings.features import ConnectorSettings, SplitSettings
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings, WorkerSettings
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer
from tests.integration.support.live_router import free_port, mockers, running, serving

pytestmark = pytest.mark.integration

NATS = NatsSettings(namespace="connectors")
PROMPT = "What everybody asks about, again and again. " * 30


@pytest.mark.parametrize("connector", ["mooncake", "p2p-nccl"])
async def test_a_sidecar_names_its_engines_connector_and_port(
    connector: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = MemoryServer()
    monkeypatch.setattr(
        "kvmesh.app.mesh.nats_plane.nats_plane",
        lambda settings, *_: MemoryPlane(memory, settings.namespace),
    )
    port = free_port()
    router = RouterServer(
        RouterSettings(
            router_id="r",
            split=SplitSettings(prefill_split="always"),
            parity_sample=0,
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=NATS,
        )
    )
    async with contextlib.AsyncExitStack() as stack:
        for role in ("prefill", "decode"):
            side = free_port() if role == "prefill" or connector == "p2p-nccl" else 0
            made = mockers(role=role, bootstrap_port=side, kv_connector=connector)
            (mocker,) = await stack.enter_async_context(made)
            settings = WorkerSettings(
                engine_url=mocker.url,
                worker_id=role,
                role=role,
                connector=ConnectorSettings(
                    kv_connector=connector,  # type: ignore[arg-type]  # one of its names
                    bootstrap_port=side,
                ),
                nats=NATS,
            )
            await stack.enter_async_context(running(Sidecar(settings).serve))
        url = await stack.enter_async_context(serving(router.serve, f"http://127.0.0.1:{port}"))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        beats = router.router.heartbeats
        await eventually(lambda: len(beats) == 2, what="both workers are known")
        body = {"model": "mock", "prompt": PROMPT, "max_tokens": 3}
        answer = await client.post("/v1/completions", json=body)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvmesh-prefill-worker"] == "prefill"
    assert answer.headers["x-kvmesh-worker"] == "decode"
    assert {one.connector for one in beats.values()} == {connector}
    assert bool(beats[WorkerId("decode")].bootstrap_port) == (connector == "p2p-nccl")


def test_a_port_that_a_connector_needs_is_asked_for_at_the_start() -> None:
    settings = WorkerSettings(
        engine_url="http://h:1",
        role="prefill",
        connector=ConnectorSettings(kv_connector="mooncake"),
        nats=NATS,
    )

    with pytest.raises(ConfigError, match=r"--kv-connector mooncake needs .* --bootstrap-port"):
        Sidecar(settings)
