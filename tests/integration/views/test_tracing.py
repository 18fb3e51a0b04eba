"""Traces of real requests, as a real OTLP collector would get them."""

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvmesh.app.front.tracing import tracer_for
from kvmesh.errors import ConfigError
from kvmesh.mocker.command import Mocker, MockerOptions
from kvmesh.settings.roles import LogSettings
from tests.integration.support import live_router

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="extra otel not installed"
)
pytestmark = pytest.mark.integration

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
BODY = {"model": "mock", "max_tokens": 2, "prompt": "Once upon a time. " * 20}


class Collector:
    """Takes spans over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.split("content-length: ")[1].split("\r\n")[0])
                data = await reader.readexactly(length)
                if "content-encoding: gzip" in head:
                    data = gzip.decompress(data)
                message = trace_service.ExportTraceServiceRequest.FromString(data)
                for resource in message.resource_spans:
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


async def test_a_request_is_one_span_below_the_clients(collector: Collector) -> None:
    engine = Mocker(
        MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
    )
    await engine.start()
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    log = LogSettings(otlp_endpoint=collector.url)
    async with (
        live_router.router([engine.url], log=log) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        first = await client.post("/v1/completions", json=BODY, headers=parent)
        await client.post("/v1/completions", json=BODY, headers=parent)
        nobody = {"x-kvmesh-router-mode": "direct", "x-kvmesh-worker-id": "nobody"}
        refused = await client.post("/v1/completions", json=BODY, headers=nobody)
    await engine.stop()

    assert (first.status_code, refused.is_error) == (200, True)
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in spans] == [PARENT, PARENT]
    assert spans[0].name == "POST /v1/completions"
    told = attributes(spans[1])
    assert told["kvmesh.worker"] == "w0"
    assert told["kvmesh.overlap_blocks"] > 10
    assert told["kvmesh.outcome"] == "finished"
    assert told["http.response.status_code"] == 200
    assert [event.name for event in spans[1].events] == ["attempt", "first byte"]


async def test_the_next_hop_continues_the_trace(collector: Collector) -> None:
    seen: list[str] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("POST"):
            seen.append(next(x for x in head.split("\r\n") if x.startswith("traceparent")))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    for log in (LogSettings(otlp_endpoint=collector.url), LogSettings()):
        async with (
            server,
            live_router.router([url], log=log, parity_sample=0) as front,
            httpx.AsyncClient(base_url=front, timeout=60) as client,
        ):
            assert (await client.post("/v1/completions", json=BODY, headers=parent)).is_success
        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()

    assert len(seen) == 2
    assert TRACE in seen[0]
    assert PARENT not in seen[0]
    assert seen[1] == f"traceparent: {parent['traceparent']}"


def test_without_an_endpoint_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)

    assert tracer_for("", "router") is None
    with pytest.raises(ConfigError, match="collector:4318"):
        tracer_for("collector:4318", "router")


def test_a_missing_library_is_named() -> None:
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from kvmesh.app.front.tracing import tracer_for\n"
        "tracer_for('http://127.0.0.1:1', 'router')"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "pip install 'kvmesh[otel]'" in done.stderr
