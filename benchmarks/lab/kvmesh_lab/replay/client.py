"""The sending side of a replay: OpenAI requests over the routers' own upstream connections.

A replay shares its machine with what it measures, so it must be cheap. With 200 streams open the
pool routers use costs a sixth of httpx per chunk (11 us against 64) and a fortieth per request
(benchmarks/quality/bench_replay.py), and it adds no dependency.
"""

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

import msgspec

from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import ERROR_BYTES, error_words, split_url
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamFailure,
    UpstreamPool,
    UpstreamRequest,
)
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh_lab.replay.answer import AnswerReader

OK: Final = 200
CONTROL_TIMEOUT_S: Final = 10.0
EVENT_STREAM: Final = b"text/event-stream"
Headers = Sequence[tuple[bytes, bytes]]


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class ReplayExchange:
    """One request and what came of it. Times are `perf_counter` seconds."""

    def __init__(self, ended: asyncio.Future[None], *, streamed: bool) -> None:
        self.on_chunk: OnChunk | None = None
        self.reader = AnswerReader()
        self.body = bytearray()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.error = ""
        self.detail = ""
        self.sent_s = perf_counter()
        self.ended_s = 0.0
        self._streamed = streamed
        self._ended = ended
        self._is_stream = False

    def on_head(self, head: ResponseHead) -> None:
        """Take status and headers; of a repeated header the last counts."""
        self.status = head.status
        self.headers = dict(head.headers)
        kind = self.headers.get(b"content-type", b"")
        self._is_stream = head.status == OK and kind.lower().startswith(EVENT_STREAM)

    def on_body(self, data: bytes) -> None:
        """Read tokens from a stream, keep anything else: all that was asked for, or some."""
        if self._is_stream and self._streamed:
            self.reader.feed(data, perf_counter())
        elif not self._streamed or len(self.body) < ERROR_BYTES:
            self.body += data

    def on_due(self) -> None:
        """Not called: there is no `on_chunk`."""

    def on_last_chunks(self, data: bytes) -> None:
        """Not called: there is no `on_chunk`."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take an answer that came at once."""
        self.on_head(head)
        self.on_end(body)

    def on_end(self, data: bytes = b"") -> None:
        """Judge the whole answer."""
        if data:
            self.on_body(data)
        if self.status != OK:
            self.end(f"http {self.status}", error_words(bytes(self.body)))
        elif not self._streamed:
            self.end("", "")
        elif not self._is_stream:
            kind = self.headers.get(b"content-type", b"none").decode("latin-1")
            self.end("not a stream", f"content-type {kind}")
        elif self.reader.stream_error:
            self.end("stream error", self.reader.stream_error)
        elif not self.reader.complete:
            self.end("truncated", "the stream ended without [DONE]")
        else:
            self.end("", "")

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Take what the connection says."""
        self.end(failure.kind, failure.message)

    def crash(self, error: Exception) -> None:
        """Take an error of ours."""
        self.end("internal error", repr(error))

    def end(self, error: str, detail: str) -> None:
        """Note the outcome; the first one counts."""
        if not self._ended.done():
            self.error, self.detail = error, detail
            self.ended_s = perf_counter()
            self._ended.set_result(None)


class ReplayClient:
    """Sends requests below one base URL; a stream has `timeout_s` until its end, others 10 s."""

    def __init__(self, pool: UpstreamPool, url: str, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._origin, self._prefix = split_url(url)

    async def stream(self, path: str, headers: Headers, body: bytes) -> ReplayExchange:
        """POST `body`, return when the answer's stream has ended, however it did."""
        return await self._exchange("POST", path, headers, body, streamed=True)

    async def fetch(self, method: str, path: str, headers: Headers = ()) -> bytes:
        """Return the body of a 200 answer. Raises `TransportError` for anything else."""
        exchange = await self._exchange(method, path, headers, b"", streamed=False)
        if exchange.error:
            raise TransportError(
                f"{method} {self._origin}{self._prefix}{path}: {exchange.error}: {exchange.detail}"
            )
        return bytes(exchange.body)

    async def first_model(self, headers: Headers) -> str:
        """Return the first model the endpoint lists. Raises `TransportError`."""
        body = await self.fetch("GET", "/v1/models", headers)
        try:
            models = msgspec.json.decode(body, type=_Models).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TransportError(f"{self._origin}/v1/models: not a model list: {error}") from error
        if not models:
            raise TransportError(f"{self._origin}/v1/models: lists no model yet; name one: --model")
        return models[0].id

    async def _exchange(
        self, method: str, path: str, headers: Headers, body: bytes, *, streamed: bool
    ) -> ReplayExchange:
        ended = asyncio.get_running_loop().create_future()
        target = f"{self._prefix}{path}".encode()
        request = UpstreamRequest(self._origin, method, target, headers, body)
        exchange = ReplayExchange(ended, streamed=streamed)
        timeout_s = self._timeout_s if streamed else CONTROL_TIMEOUT_S
        call = self._pool.send(request, exchange)
        try:
            async with asyncio.timeout(timeout_s):
                await ended
        except TimeoutError:
            exchange.error, exchange.detail = "timeout", f"not ended after {timeout_s:g} s"
            exchange.ended_s = perf_counter()
        finally:
            call.cancel()
        return exchange
