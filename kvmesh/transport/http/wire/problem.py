"""Errors as HTTP answers, in OpenAI's shape, and their one encoder."""

from typing import Final

import msgspec

from kvmesh.bounds import MAX_TEXT
from kvmesh.errors import MODEL_NOT_FOUND, KvMeshError, NoWorkerError, RequestError, TransportError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_SERVER_ERROR = 500

NO_RETRY: Final = (b"x-should-retry", b"false")
"""What OpenAI's clients obey: to send this request again would only fail more workers."""


WISHED: Final = (b"x-kvmesh-refused", b"wishes")
"""Of a request that nobody may take for what it asks itself: that is no fault of who answers."""


WORKERLESS: Final = (b"x-kvmesh-refused", b"no-worker")
"""Of a request that no worker of a router can take now, where the client holds it itself."""


MESSAGES: Final = "/v1/messages"
"""The path of Anthropic's API."""


class Problem(msgspec.Struct, frozen=True):
    """One error answer. `code` is a constant for programs, `message` is for people.

    `retry_after_s` > 0 adds a Retry-After header. `final` tells OpenAI's clients not to send the
    request again, `wished` meta-routers that no other replica would take it.
    `challenge` is the WWW-Authenticate of a 401, `also` are further headers.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int = 0
    final: bool = False
    challenge: bytes = b""
    wished: bool = False
    also: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def from_error(cls, error: KvMeshError) -> "Problem":
        """Return how `error` is told to a client."""
        match error:
            case RequestError():
                return cls(
                    error.status,
                    str(error),
                    code=error.code,
                    param=error.param,
                    retry_after_s=error.retry_after_s,
                    final=error.final,
                )
            case NoWorkerError():
                return cls._no_worker(error)
            case TransportError():
                return cls(502, str(error), code="upstream_error")
            case _:
                return cls(500, str(error), code="internal_error")

    @classmethod
    def _no_worker(cls, error: NoWorkerError) -> "Problem":
        said = str(error)
        if error.unknown_model:
            return cls(404, said, code=MODEL_NOT_FOUND, param="model")
        if error.unnamed:
            return cls(400, said, code="no_worker_named", param="x-kvmesh-worker-id")
        if error.unknown_worker:
            return cls(404, said, code="worker_not_found", param="x-kvmesh-worker-id")
        return cls(503, said, code="no_worker", retry_after_s=1, wished=error.wished)

    @property
    def kind(self) -> str:
        """Return OpenAI's `type` of the status, and of a model that is not there."""
        if self.code == MODEL_NOT_FOUND:
            return "invalid_request_error"
        default = "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error"
        return _TYPES.get(self.status, default)

    def body(self, request_id: str = "") -> bytes:
        """Return `{"error": {...}}`; the request id is put in when there is one.

        `MAX_TEXT` characters of the message, which may quote what was sent, are told.
        """
        message = self.message
        error: dict[str, str | None] = {
            "message": message if len(message) <= MAX_TEXT else f"{message[:MAX_TEXT]}…",
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        if request_id:
            error["request_id"] = request_id
        return msgspec.json.encode({"error": error})

    def event(self, request_id: str = "", path: str = "") -> bytes:
        """Return the same as one event of the stream that was asked for at `path`."""
        return error_event(self.body(request_id), path)

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers the answer needs besides its content type."""
        headers = [(b"retry-after", b"%d" % self.retry_after_s)] if self.retry_after_s else []
        if self.final:
            headers.append(NO_RETRY)
        if self.wished:
            headers.append(WISHED)
        if self.challenge:
            headers.append((b"www-authenticate", self.challenge))
        return (*headers, *self.also)


def error_event(body: bytes, path: str) -> bytes:
    """Return an error's JSON as one server-sent event. Clients of Anthropic's API read named events
    only, each with its `type`.
    """
    if path != MESSAGES:
        return b"data: %b\n\n" % body
    if body.startswith(b'{"error"'):
        body = b'{"type":"error",' + body[1:]
    return b"event: error\ndata: %b\n\n" % body
