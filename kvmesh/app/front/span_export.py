"""Spans of requests that are over: made in slices between requests, sent in batches by a thread.

A batch that a collector does not take for now is sent again, with pauses that grow; meanwhile spans
wait, up to a bound, and what comes beyond it is dropped. No request ever waits for any of it.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from kvmesh._native import Record
from kvmesh.app.front.otlp_encoding import Envelope, Event, SpanData, Value, encode_span
from kvmesh.app.front.otlp_environment import ExportBounds
from kvmesh.app.front.otlp_messages import ExportStatistics, Posted
from kvmesh.observe import get_logger
from kvmesh.tasks import end_tasks, supervise
from kvmesh.transport.http.wire.trace import Trace

OWN: Final = b"x-kvmesh-"
SLICE: Final = 16
"""Spans made in one turn of the event loop, 0.3 ms."""

MOST_BATCH_BYTES: Final = 1 << 20
MOST_ATTEMPTS: Final = 6
LONGEST_PAUSE_S: Final = 30.0
CLOSE_S: Final = 5.0
"""How long the last spans may take at the end of the process."""

_COUNTED: Final = b"x-kvmesh-attempts"
"""Said of every request, of its trace."""
_NUMBERS: Final = frozenset({"overlap_blocks"})
_FAILED: Final = frozenset({"failed", "cut", "crashed"})
_SERVER_ERROR: Final = 500
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}
"""gen_ai.operation.name. Source: OpenTelemetry's semantic conventions for generative AI."""

PROVIDER: Final = "kvmesh"
_PORTS: Final = {"http": 80, "https": 443}
_NS: Final = 1_000_000_000


class Destination(Protocol):
    """A collector: `app.front.otlp_collector`, which only a process that traces loads."""

    timeout_s: float
    shown_url: str

    def post(self, body: bytes) -> Posted:
        """Send a batch; blocks."""
        ...

    def close(self) -> None:
        """Give the connection up; a `post` under way fails."""
        ...


class SpanExport:
    """The way of spans to one collector. `take` costs a request nothing but its place."""

    def __init__(self, collector: Destination, envelope: Envelope, bounds: ExportBounds) -> None:
        self._collector = collector
        self._envelope = envelope
        self._bounds = bounds
        self._waiting: deque[Trace] = deque()
        self._wanted, self._ending = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._batch: list[bytes] = []
        self._exported = self._rejected = self._full = self._failed = 0
        self._logged = ""

    def take(self, trace: Trace) -> None:
        """Take a request that is over."""
        waiting = self._waiting
        if len(waiting) >= self._bounds.queue:
            self._full += 1
            return
        waiting.append(trace)
        if len(waiting) == self._bounds.batch:
            self._wanted.set()

    def statistics(self) -> ExportStatistics:
        """Return the present counts."""
        waiting = len(self._waiting) + len(self._batch)
        return ExportStatistics(waiting, self._exported, self._rejected, self._full, self._failed)

    def start(self) -> None:
        """Send what comes, until `close`."""
        self._running = supervise("span export", self._run)

    async def close(self) -> None:
        """Send what waits, in `CLOSE_S` at most; the rest is dropped."""
        self._ending.set()
        self._wanted.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=CLOSE_S)
            await end_tasks(self._running)
        self._failed += len(self._waiting) + len(self._batch)
        self._waiting.clear()
        self._batch = []
        self._collector.close()

    async def _run(self) -> None:
        failed = 0
        while not self._ending.is_set():
            await _wait(self._wanted, self._bounds.delay_s)
            self._wanted.clear()
            failed = self._failed
            while (self._waiting or self._batch) and not self._is_lost(failed):
                await self._send()

    def _is_lost(self, failed: int) -> bool:
        """Return whether a batch failed at the end: the others would, too, and time is short."""
        return self._ending.is_set() and self._failed != failed

    async def _send(self) -> None:
        """Send one batch."""
        await self._make()
        count = len(self._batch)
        posted = await self._deliver(self._envelope.request(self._batch))
        self._batch = []
        if posted.accepted:
            rejected = min(posted.rejected, count)
            self._rejected += rejected
            self._exported += count - rejected
        else:
            self._failed += count
        self._report(posted.error)

    async def _make(self) -> None:
        """Encode the next batch, a slice a turn."""
        spans, most = self._batch, self._bounds.batch
        size = sum(map(len, spans))
        offset_ns = time.time_ns() - time.monotonic_ns()
        while self._waiting and len(spans) < most and size < MOST_BATCH_BYTES:
            for _ in range(min(SLICE, most - len(spans), len(self._waiting))):
                span = encode_span(span_of(self._waiting.popleft(), offset_ns))
                size += len(span)
                spans.append(span)
            await asyncio.sleep(0)

    async def _deliver(self, body: bytes) -> Posted:
        """Send a batch until it is taken, refused for good, or was tried so often; at the end of
        the process once more.
        """
        pause_s, left = 1.0, MOST_ATTEMPTS
        while True:
            left = 1 if self._ending.is_set() else left
            posted = await self._post(body)
            left -= 1
            if posted.accepted or not posted.again or left <= 0:
                return posted
            self._report(posted.error)
            jittered_s = pause_s * random.uniform(0.8, 1.2)  # noqa: S311  no secret
            await _wait(self._ending, min(max(jittered_s, posted.wait_s), LONGEST_PAUSE_S))
            pause_s *= 2.0

    async def _post(self, body: bytes) -> Posted:
        """Post in a thread that nobody waits for at the end of the process."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Posted] = loop.create_future()

        def answer(posted: Posted) -> None:
            if not done.done():
                done.set_result(posted)

        def work() -> None:
            posted = self._collector.post(body)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answer, posted)

        threading.Thread(target=work, name="otlp", daemon=True).start()
        timeout_s = self._collector.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await done
        except TimeoutError:
            return Posted(accepted=False, error=f"no answer in {timeout_s:g} s", again=True)
        finally:
            if not done.done():
                self._collector.close()

    def _report(self, error: str) -> None:
        """Log what is wrong, once, and that it is over."""
        if error == self._logged:
            return
        self._logged = error
        log = get_logger()
        if error:
            log.warning("spans are not exported", url=self._collector.shown_url, error=error)
        else:
            log.info("spans are exported again", url=self._collector.shown_url)


async def _wait(event: asyncio.Event, most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), most_s)


def span_of(trace: Trace, offset_ns: int) -> SpanData:
    """Return the span of a request that is over; `offset_ns` is Unix time less monotonic time."""

    def unix_ns(time_s: float) -> int:
        return offset_ns + int(time_s * _NS)

    record = cast("Record | None", trace.record)
    started_s = trace.started_s
    if record is not None:
        started_s = min(started_s, record.decided_s)
    events = [
        Event(unix_ns(at_s), name, ((_NAMED[name], text),)) for at_s, name, text in trace.events
    ]
    if trace.first_s:
        events.append(Event(unix_ns(trace.first_s), "first byte"))
    failed = trace.kind in _FAILED
    error = None
    attributes = _attributes(trace, record)
    if failed or trace.status >= _SERVER_ERROR:
        error = trace.failure or trace.kind if failed else f"status {trace.status}"
        kind = str(trace.status) if trace.status >= _SERVER_ERROR else trace.kind
        attributes.append(("error.type", kind))
    return SpanData(
        bytes.fromhex(trace.trace_id.decode()),
        bytes.fromhex(trace.span_id.decode()),
        bytes.fromhex(trace.parent_id.decode()),
        f"{trace.method} {trace.path}",
        unix_ns(started_s),
        unix_ns(trace.ended_s),
        attributes,
        events,
        error,
    )


_ATTEMPT: Final = "attempt"
_NAMED: Final = {_ATTEMPT: "url.full", "attempt failed": "kvmesh.failure"}


def _attributes(trace: Trace, record: Record | None) -> list[tuple[str, Value]]:
    found: list[tuple[str, Value]] = [
        ("http.request.method", trace.method),
        ("url.path", trace.path),
        ("client.address", trace.client),
        ("kvmesh.request_id", trace.request_id),
        ("kvmesh.outcome", trace.kind),
        ("kvmesh.attempts", trace.attempts),
    ]
    if trace.status:
        found.append(("http.response.status_code", trace.status))
    for name, value in trace.added:
        if name.startswith(OWN) and name != _COUNTED:
            key = name.removeprefix(OWN).decode().replace("-", "_")
            words = value.decode("latin-1")
            found.append((f"kvmesh.{key}", int(words) if key in _NUMBERS else words))
    operation = _OPERATIONS.get(trace.path)
    if operation is not None:
        found += (("gen_ai.operation.name", operation), ("gen_ai.provider.name", PROVIDER))
    if trace.model:
        found.append(("gen_ai.request.model", trace.model))
    if trace.conversation:
        found.append(("gen_ai.conversation.id", trace.conversation))
    found += _server(trace)
    if trace.stream:
        found.append(("gen_ai.request.stream", True))
        if trace.first_s:
            first_s = trace.first_s - trace.started_s
            found.append(("gen_ai.response.time_to_first_chunk", first_s))
    if record is not None:
        found += _decided(record, answered=bool(trace.added))
    return found


def _server(trace: Trace) -> list[tuple[str, Value]]:
    """Return where the last attempt went: the engine's address, or a meta-router's replica's."""
    origins = [text for _, name, text in trace.events if name == _ATTEMPT]
    if not origins:
        return []
    parts = urlsplit(origins[-1])
    port = parts.port or _PORTS[parts.scheme]
    return [("server.address", parts.hostname or ""), ("server.port", port)]


def _decided(record: Record, *, answered: bool) -> list[tuple[str, Value]]:
    """Return what a router's record knows; `answered`: the answer's head named the worker."""
    found: list[tuple[str, Value]] = [] if answered else [("kvmesh.worker", record.worker)]
    if (ttft_ms := record.ttft_ms) is not None:
        found.append(("kvmesh.ttft_ms", ttft_ms))
    if record.held_ms is not None:
        found.append(("kvmesh.held_ms", record.held_ms))
    usage = record.reported
    if usage is not None:
        found.append(("gen_ai.usage.input_tokens", usage.prompt_tokens))
        found.append(("gen_ai.usage.output_tokens", usage.completion_tokens))
        if usage.cached_tokens is not None:
            found.append(("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens))
    return found
