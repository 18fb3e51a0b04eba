"""The sidecar's own port: what probes and Prometheus read while its engine comes, serves, goes."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.actors.wire import Subjects
from kvmesh.app.process.running import Stop
from kvmesh.app.worker.command import Sidecar
from kvmesh.app.worker.pages import SidecarPages
from kvmesh.errors import TransportError
from kvmesh.settings.http import SidecarHttpSettings
from kvmesh.settings.roles import WorkerSettings
from kvmesh_lab.mocker.command import Mocker
from tests.doubles.memory.server import MemoryServer
from tests.integration.support.live_router import (
    engine,
    free_port,
    mocker_options,
    serve_from_memory,
)
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    return serve_from_memory(monkeypatch)


def settings_for(engine_url: str, port: int) -> WorkerSettings:
    return WorkerSettings(
        engine_url=engine_url,
        worker_id="w",
        load_interval_s=0.02,
        http=SidecarHttpSettings(http_port=port),
    )


@contextlib.asynccontextmanager
async def pages(engine_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run the sidecar of `engine_url` and its port, which answers when the block begins."""
    settings = settings_for(engine_url, free_port())
    stop = Stop()
    running = asyncio.ensure_future(SidecarPages(settings.http, Sidecar(settings)).serve(stop))
    url = f"http://127.0.0.1:{settings.http.http_port}"
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        try:
            await first_with(client, "/health", "alive")
            yield client
        finally:
            stop.request()
            await running


async def first_with(client: httpx.AsyncClient, path: str, word: str) -> httpx.Response:
    """Return the first answer that has `word`."""

    async def look() -> httpx.Response | None:
        answer = await client.get(path)
        return answer if word in answer.text else None

    found: httpx.Response = await until(look)
    return found


def families(text: str) -> dict[str, Metric]:
    found = {one.name: one for one in text_string_to_metric_families(text)}
    return {name: one for name, one in found.items() if name.startswith("kvmesh_")}


def value(metrics: dict[str, Metric], name: str) -> float:
    return metrics[name].samples[0].value


async def complete(mocker: Mocker, prompt: str) -> None:
    async with httpx.AsyncClient(base_url=mocker.url, timeout=20) as client:
        body = {"model": "mock", "prompt": prompt, "max_tokens": 1}
        (await client.post("/v1/completions", json=body)).raise_for_status()


async def test_probes_follow_the_engine_from_before_it_starts_until_it_is_gone(
    server: MemoryServer,
) -> None:
    options = mocker_options(16, 512)
    server.make_stream(Subjects("kvmesh", "default").stream())
    async with pages(f"http://127.0.0.1:{options.port}") as client:
        waiting = await client.get("/ready")
        async with engine(options) as mocker:
            await first_with(client, "/metrics", 'kvmesh_sidecar_source_connected{worker="w"} 1.0')
            ready = await first_with(client, "/ready", '"reason": "ready"')
            await complete(mocker, "what everybody asks. " * 40)
            held = 'kvmesh_sidecar_cached_blocks{worker="w"} 52.0'
            metrics = families((await first_with(client, "/metrics", held)).text)
            server.set_up(up=False)
            cut_off = await first_with(client, "/ready", "NATS")
        gone = await first_with(client, "/ready", "does not answer")
        other = await client.get("/v1/models")

    assert (waiting.status_code, waiting.json()["ready"]) == (503, False)
    assert "waiting for the engine" in waiting.json()["reason"]
    assert ready.json() == {"ready": True, "reason": "ready", "workers": ["w"]}
    assert ready.status_code == cut_off.status_code == 200
    assert (gone.status_code, other.status_code) == (503, 404)
    assert value(metrics, "kvmesh_sidecar_ready") == 1.0
    assert value(metrics, "kvmesh_sidecar_read_batches") >= 1.0
    assert value(metrics, "kvmesh_sidecar_dumps") == 1.0
    assert metrics["kvmesh_sidecar_publish_seconds"].samples
    assert value(metrics, "kvmesh_sidecar_source_connected") == 1.0
    documented = set(re.findall(r"^\| `(kvmesh_\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert set(metrics) <= documented


async def test_a_taken_port_ends_the_sidecar_with_its_name(server: MemoryServer) -> None:
    del server
    async with engine(mocker_options(16, 64)) as mocker, pages(mocker.url) as client:
        port = client.base_url.port
        assert port is not None
        settings = settings_for(mocker.url, port)
        second = SidecarPages(settings.http, Sidecar(settings))
        with pytest.raises(TransportError, match=str(port)):
            await second.serve(Stop())


async def test_no_port_is_opened_unless_one_is_set(server: MemoryServer) -> None:
    del server
    settings = settings_for("http://127.0.0.1:9", 0)
    stop = Stop()
    stop.request()

    await SidecarPages(settings.http, Sidecar(settings)).serve(stop)
