"""One small HTTP request over the data plane's own client: health, discovery, load."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh.errors import SlowError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamFailure,
    UpstreamPool,
    UpstreamRequest,
)
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import Headers

MAX_BODY_BYTES = 4 * 1024**2
HTTP_OK = 200
ERROR_BYTES: Final = 2_000
"""So much of an error answer's body is kept for the report."""


class _ErrorWords(msgspec.Struct, frozen=True):
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorWords


class _Answer:
    """A sink that keeps the whole answer, up to `MAX_BODY_BYTES`; `done` has why there is none, ""
    otherwise.

    An exception in `done` would hold itself by the frame that waits for it, and with it the body.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_chunk: OnChunk | None = None
        self.status = 0
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= MAX_BODY_BYTES:
            self._parts.append(data)
        elif not self.done.done():
            self._parts.clear()
            most = f"{MAX_BODY_BYTES:,} bytes"
            self.done.set_result(f"{self._origin}: an answer above {most}")

    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_due(self) -> None:
        """Not called: there is no `on_chunk`."""

    def on_end(self, data: bytes = b"") -> None:
        self.on_body(data)
        if not self.done.done():
            self.done.set_result("")

    def on_last_chunks(self, data: bytes) -> None:
        """Not called: there is no `on_chunk`."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        self.on_head(head)
        self.on_end(body)

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            words = failure.message.removeprefix(f"{failure.origin}: ")
            self.done.set_result(f"{failure.origin}: {words}")

    def crash(self, error: Exception) -> None:
        get_logger().error("request crashed", exc_info=error)
        if not self.done.done():
            self.done.set_result(f"internal error: {error!r}")


async def fetch(
    pool: UpstreamPool,
    origin: str,
    path: str,
    *,
    timeout_s: float = 2.0,
    headers: Headers = (),
    json: bytes | None = None,
) -> tuple[int, bytes]:
    """GET `origin` + `path`, or POST `json` there; return status and body.

    Raises `TransportError` when there is no whole answer, or one above `MAX_BODY_BYTES`;
    `SlowError` of it after `timeout_s`.
    """
    answer = _Answer(origin)
    request = UpstreamRequest(origin, "GET", path.encode(), headers)
    if json is not None:
        headers = (*headers, (b"content-type", b"application/json"))
        request = UpstreamRequest(origin, "POST", path.encode(), headers, json)
    call = pool.send(request, answer)
    try:
        async with asyncio.timeout(timeout_s):
            failure = await answer.done
    except TimeoutError as error:
        raise SlowError(f"{origin}{path}: no answer in {timeout_s:g} s") from error
    finally:
        call.cancel()
    if failure:
        raise TransportError(failure)
    return answer.status, answer.body()


async def fetch_ok(
    pool: UpstreamPool,
    origin: str,
    path: str,
    *,
    timeout_s: float = 2.0,
    headers: Headers = (),
) -> bytes | None:
    """Return the body of a 200 answer, None for any other answer or none at all."""
    try:
        status, body = await fetch(pool, origin, path, timeout_s=timeout_s, headers=headers)
    except TransportError:
        return None
    return body if status == HTTP_OK else None


def error_words(body: bytes) -> str:
    """Return the message of an OpenAI error body, or the body's first words."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body[:ERROR_BYTES].decode("utf-8", "replace").strip()


def split_url(url: str) -> tuple[str, str]:
    """Return the origin and the path before /v1, e.g. of a proxy."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
