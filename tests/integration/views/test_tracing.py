"""Traces of real requests, as a real OTLP collector gets them, well or sick."""

import asyncio
import contextlib
import random
import shutil
import ssl
import subprocess
import time
import tomllib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from kvmesh.app.front import span_export
from kvmesh.app.front.span_export import SpanExport
from kvmesh.app.front.tracing import Tracer, tracer_for
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import LogSettings
from kvmesh.transport.http.wire.trace import Trace
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers
from tests.integration.views.collector import (
    BUSY,
    GARBAGE,
    REFUSED,
    SILENT,
    UNREADABLE,
    Collector,
    attributes,
    collecting,
    partly,
    redirect,
)

pytestmark = pytest.mark.integration

CONVENTIONS = Path(__file__).parents[2] / "fixtures/conventions/otel.toml"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
BODY: Final[dict[str, Any]] = {
    "model": "mock",
    "max_tokens": 2,
    "prompt": "Once upon a time. " * 20,
}
NOBODY: Final = {"x-kvmesh-router-mode": "direct", "x-kvmesh-worker-id": "nobody"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "HEADERS", "CERTIFICATE"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as made:
        yield made


@contextlib.asynccontextmanager
async def traced(url: str, share: float | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve a router over one simulated engine, traced to `url`."""
    log = LogSettings(otlp_endpoint=url, otlp_sample=share)
    async with (
        mockers() as (engine,),
        live_router.client_of(live_router.router([engine.url], log=log)) as client,
    ):
        yield client


async def figures(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text.splitlines()
    rows = (line.rpartition(" ") for line in page if line.startswith("kvmesh_otlp_spans_total{"))
    return {name.partition('result="')[2].rstrip('"}'): float(value) for name, _, value in rows}


def parent(flags: str, trace: str = TRACE) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}", "tracestate": "vendor=1"}


async def test_a_request_is_one_span_below_the_clients(collector: Collector) -> None:
    async with traced(collector.url) as client:
        first = await client.post("/v1/completions", json=BODY, headers=parent("01"))
        await client.post("/v1/completions", json=BODY | {"stream": True}, headers=parent("01"))
        refused = await client.post("/v1/completions", json=BODY, headers=NOBODY)

    assert (first.status_code, refused.is_error) == (200, True)
    spans = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    assert [span.parent_span_id.hex() for span in spans] == [PARENT, PARENT]
    whole, streamed = map(attributes, spans)
    assert spans[0].name == "POST /v1/completions"
    assert whole["kvmesh.request_id"] == first.headers["x-request-id"]
    assert streamed["kvmesh.worker"] == "w0"
    assert streamed["kvmesh.overlap_blocks"] > 10
    assert streamed["kvmesh.outcome"] == "finished"
    assert streamed["http.response.status_code"] == 200
    usage = first.json()["usage"]
    assert whole["gen_ai.operation.name"] == "text_completion"
    assert whole["gen_ai.request.model"] == "mock"
    assert whole["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert whole["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 2
    assert streamed["gen_ai.request.stream"] is True
    assert 0 < streamed["kvmesh.ttft_ms"] < 20_000
    assert 0 < streamed["gen_ai.response.time_to_first_chunk"] < 20
    assert [event.name for event in spans[1].events] == ["attempt", "first byte"]
    times = [spans[1].start_time_unix_nano, *(one.time_unix_nano for one in spans[1].events)]
    assert times == sorted(times)
    assert abs(spans[1].end_time_unix_nano / 1e9 - time.time()) < 60
    (own,) = (span for span in collector.spans if not span.parent_span_id)
    assert own.trace_id.hex() != TRACE
    assert own.status.code == own.status.STATUS_CODE_ERROR
    assert collector.resources[0]["service.name"] == "kvmesh-router"


async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer 503 to all requests but probes."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = b"503 Busy" if head.startswith(b"POST") else b"200 OK"
    length = b"content-length: %d\r\nconnection: close" % len(live_router.MODELS)
    writer.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, length, live_router.MODELS))
    writer.close()


@contextlib.asynccontextmanager
async def beside_a_busy_engine(
    collector: Collector,
) -> AsyncIterator[tuple[httpx.AsyncClient, str, str]]:
    """Run a router; yield its client, the URL of its engine, and that of one that is busy."""
    server = await asyncio.start_server(busy, "127.0.0.1", 0)
    gone = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    log = LogSettings(otlp_endpoint=collector.url)
    async with (
        mockers() as (engine,),
        server,
        live_router.client_of(live_router.router([gone, engine.url], log=log)) as client,
    ):
        yield client, engine.url, gone


async def test_names_are_those_of_the_conventions(collector: Collector) -> None:
    """Of all spans and events: each name and its type, but those that begin with `kvmesh.`."""
    convention = tomllib.loads(CONVENTIONS.read_text())["attributes"]
    chat = {"model": "mock", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with beside_a_busy_engine(collector) as (client, url, _):
        for number in range(8):
            asked = BODY | {"prompt": f"{number} " * 200}
            await client.post("/v1/completions", json=asked, headers={"session-id": "of codex"})
        await client.post("/v1/chat/completions", json=chat, headers={"x-kvmesh-session": "own"})
        await client.post("/v1/completions", json=BODY, headers=NOBODY)
        port = int(url.rpartition(":")[2])

    events = [event for span in collector.spans for event in span.events]
    pairs = [attributes(one) for one in (*collector.spans, *events)]
    named = {name: value for pair in pairs for name, value in pair.items()}
    foreign = {name: value for name, value in named.items() if not name.startswith("kvmesh.")}
    types = {"string": str, "int": int, "double": float, "boolean": bool}
    wrong = {
        name: value
        for name, value in foreign.items()
        if name not in convention or type(value) is not types[convention[name]]
    }
    assert wrong == {}
    made = [attributes(span) for span in collector.spans]
    (streamed,) = (one for one in made if one.get("gen_ai.operation.name") == "chat")
    (refused,) = (one for one in made if "server.address" not in one)
    sessions = sorted(one.get("gen_ai.conversation.id", "") for one in made)
    assert sessions == ["", *["of codex"] * 8, "own"]
    assert streamed["gen_ai.conversation.id"] == "own"
    assert (streamed["server.address"], streamed["server.port"]) == ("127.0.0.1", port)
    assert refused["error.type"] == str(refused["http.response.status_code"])
    assert {"gen_ai.usage.input_tokens", "kvmesh.failure", "url.full"} <= named.keys()


async def test_an_attempt_that_fails_is_told_with_the_next(collector: Collector) -> None:
    async with beside_a_busy_engine(collector) as (client, _, gone):
        for number in range(8):
            asked = BODY | {"prompt": f"{number} " * 200}
            assert (await client.post("/v1/completions", json=asked)).is_success

    longest = max(collector.spans, key=lambda span: len(span.events))
    assert attributes(longest)["kvmesh.attempts"] == 2
    names = [event.name for event in longest.events]
    assert names == ["attempt", "attempt failed", "attempt", "first byte"]
    assert longest.events[0].attributes[0].value.string_value == gone
    assert longest.status.code == longest.status.STATUS_CODE_UNSET


async def test_a_clients_flag_decides_else_the_share(collector: Collector) -> None:
    async with traced(collector.url, 0.0) as client:
        for flags in ("00", "01", None):
            headers = {} if flags is None else parent(flags)
            await client.post("/v1/completions", json=BODY, headers=headers)

    assert [span.parent_span_id.hex() for span in collector.spans] == [PARENT]


async def test_the_share_of_requests_is_traced(collector: Collector) -> None:
    async with traced(collector.url, 0.5) as client:
        for _ in range(60):
            await client.post("/v1/completions", json=BODY)

    assert 10 < len(collector.spans) < 50


@pytest.mark.parametrize(
    ("share", "sent", "said"),
    [
        (None, parent("01"), f"00-{TRACE}-{{span}}-01"),
        (None, parent("00"), f"00-{TRACE}-{PARENT}-00"),
        (0.0, {}, "00-{trace}-{span}-00"),
        (None, {}, "00-{trace}-{span}-01"),
        (0.0, {"traceparent": "00-0-0-01", "tracestate": "vendor=1"}, "00-{trace}-{span}-00"),
    ],
)
async def test_the_next_hop_continues_the_trace(
    collector: Collector, share: float | None, sent: dict[str, str], said: str
) -> None:
    seen: list[dict[str, str]] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("POST"):
            lines = [line.partition(": ") for line in head.split("\r\n")]
            seen.append({name: value for name, _, value in lines if name.startswith("trace")})
            assert sum(name == "traceparent" for name, _, _ in lines) == 1
        body = live_router.COMPLETION if head.startswith("POST") else live_router.MODELS
        ended = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 200 OK\r\n" + ended + body)
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    log = LogSettings(otlp_endpoint=collector.url, otlp_sample=share)
    async with (
        server,
        live_router.client_of(live_router.router([url], log=log, parity_sample=0)) as client,
    ):
        assert (await client.post("/v1/completions", json=BODY, headers=sent)).is_success

    (trace,) = seen
    _, trace_id, span_id, _ = trace["traceparent"].split("-")
    assert trace["traceparent"] == said.format(trace=trace_id, span=span_id)
    assert (len(trace_id), len(span_id)) == (32, 16)
    valid = "tracestate" in sent and TRACE in sent["traceparent"]
    assert trace.get("tracestate") == ("vendor=1" if valid else None)
    spans = {span.span_id.hex() for span in collector.spans}
    assert spans == ({span_id} if said.endswith("-01") else set())


async def test_tls_and_headers_are_as_the_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl binary to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    argv += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    argv += ["-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc,x-scope=me")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(key))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    async with collecting(context) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with traced("") as client:
            await client.post("/v1/completions", json=BODY)

        assert len(collector.spans) == 1
        assert "authorization: Basic abc\r\n" in collector.heads[0]
        assert "x-scope: me\r\n" in collector.heads[0]
        assert collector.heads[0].startswith("POST /v1/traces ")
        assert collector.resources[0]["service.name"] == "mine"


# The export alone: many spans, sick collectors.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have batches of 4 go at once, and be sent again at once."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "32")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setattr(span_export, "LONGEST_PAUSE_S", 0.01)


def over(tracer: Tracer, count: int) -> None:
    """Have so many requests be over."""
    for _ in range(count):
        number = random.getrandbits(192)
        ids = b"%048x" % number
        Trace(ids[:32], ids[32:], b"", tracer.export.take, path="/v1/completions").end(
            "finished", 200
        )


@contextlib.asynccontextmanager
async def exporting_to(url: str) -> AsyncGenerator[tuple[Tracer, SpanExport]]:
    tracer = tracer_for(url, "router")
    assert tracer is not None
    assert isinstance(tracer.export, SpanExport)
    tracer.export.start()
    yield tracer, tracer.export
    await tracer.export.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sick", [BUSY, GARBAGE, SILENT])
async def test_a_batch_that_is_not_taken_now_is_sent_again(
    collector: Collector, sick: bytes
) -> None:
    collector.answers = [sick, sick]
    async with exporting_to(collector.url) as (tracer, export):
        over(tracer, 4)
        await collector.until(lambda one: len(one.spans) == 4)

    assert collector.posts == 3
    seen = export.statistics()
    assert (seen.exported, seen.failed, seen.full) == (4, 0, 0)


@pytest.mark.usefixtures("quick")
async def test_what_is_refused_for_good_is_dropped_and_counted(collector: Collector) -> None:
    async with collecting() as elsewhere:
        collector.answers = [REFUSED, redirect(elsewhere.url), partly(3, "too old"), UNREADABLE]
        async with exporting_to(collector.url) as (tracer, export):
            for _ in range(5):
                over(tracer, 4)
            await collector.until(lambda one: len(one.spans) == 4)

        assert elsewhere.posts == 0
    seen = export.statistics()
    assert collector.posts == 5
    assert (seen.failed, seen.rejected, seen.exported) == (8, 3, 9)


@pytest.mark.usefixtures("quick")
async def test_a_dead_collector_costs_spans_and_nothing_else() -> None:
    url = f"http://127.0.0.1:{live_router.free_port()}"
    async with exporting_to(url) as (tracer, export):
        over(tracer, 100)
        assert export.statistics().waiting == 32
        assert export.statistics().full == 68
        async with asyncio.timeout(20):
            while export.statistics().failed < 32:  # noqa: ASYNC110  a thread is refused
                await asyncio.sleep(0.01)

    assert export.statistics() == type(export.statistics())(0, 0, 0, 68, 32)


@pytest.mark.usefixtures("quick")
async def test_the_loop_is_never_held_up_by_a_slow_collector(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that never answers, thousands of spans: what is between two turns of the loop is
    a slice of spans.
    """
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4096")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2048")
    collector.usual = SILENT
    longest = busy = 0.0
    async with exporting_to(collector.url) as (tracer, export):
        over(tracer, 4096)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            before_s, before_cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before_cpu)
            busy += time.monotonic() - before_s

    assert collector.posts > 0
    assert longest < 0.02
    assert export.statistics().waiting == 0


@pytest.mark.usefixtures("quick")
async def test_the_end_waits_for_no_collector_that_is_dead_or_silent(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "CLOSE_S", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    collector.usual = SILENT
    tracer = tracer_for(collector.url, "router")
    assert tracer is not None
    tracer.export.start()
    over(tracer, 8)

    async with asyncio.timeout(5):
        await tracer.export.close()

    assert tracer.export.statistics().failed == 8
    assert tracer.export.statistics().waiting == 0


@pytest.mark.usefixtures("quick")
async def test_a_batch_under_way_at_the_end_is_sent_all_the_same(collector: Collector) -> None:
    collector.answers = [BUSY]
    tracer = tracer_for(collector.url, "router")
    assert tracer is not None
    tracer.export.start()
    over(tracer, 4)
    await collector.until(lambda one: one.posts == 1)

    await tracer.export.close()

    assert len(collector.spans) == 4


async def test_spans_are_counted_on_the_metrics_page(collector: Collector) -> None:
    async with traced(collector.url) as client:
        await client.post("/v1/completions", json=BODY)
        assert await figures(client) == {"exported": 0, "rejected": 0, "full": 0, "failed": 0}


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert tracer_for("", "router") is None
    with pytest.raises(ConfigError, match="collector:4318"):
        tracer_for("collector:4318", "router")
