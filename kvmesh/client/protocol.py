"""What a client says to a front door and reads from it, whoever moves the bytes.

`Call`s are built here and responses read here; `aio.AsyncClient` and `sync.Client` only send them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import msgspec

from kvmesh.bounds import MAX_COUNT, UNREADABLE, whole_number
from kvmesh.errors import NoWorkerError, RequestError, TransportError

Request = Mapping[str, Any]
"""The body of an OpenAI request, as JSON would have it."""

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S: Final = 600.0

PATHS: Final = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
"""Which endpoint a body is for, by the field that holds its prompt."""

DONE: Final = "[DONE]"
UNAVAILABLE: Final = 503


class Endpoint(msgspec.Struct, frozen=True):
    """How busy one worker is: KV cache in use, 0..1, and requests that wait there."""

    worker_id: str
    gpu_cache_usage_perc: float
    num_requests_waiting: int
    active_blocks: int
    prefill_tokens: int


class Metrics(msgspec.Struct, frozen=True):
    """How busy all workers are that could take a request."""

    endpoints: list[Endpoint]


class Route(msgspec.Struct, frozen=True):
    """What a router would decide about a request. `matches`: cached prefix in blocks by worker."""

    worker_id: str
    total_blocks: int
    matches: dict[str, int]
    metrics: Metrics
    why: str
    bucket: str = ""


CustomRouter = Callable[[dict[str, int], Metrics], str]
"""`def custom_router(matches, metrics)` returns the id of the worker that shall serve."""


class Answer(msgspec.Struct, frozen=True):
    """An answer's JSON and where it came from. Blocks are of the prompt, believed cached."""

    body: dict[str, Any]
    worker_id: str
    overlap_blocks: int
    router: str
    bucket: str
    request_id: str

    @property
    def text(self) -> str:
        """Return the text of the first choice, empty where there is none."""
        choices: list[dict[str, Any]] = self.body.get("choices") or [{}]
        message: dict[str, Any] = choices[0].get("message") or {}
        return str(choices[0].get("text") or message.get("content") or "")


_LATE: Final = {
    "worker": "worker_id",
    "overlap-blocks": "overlap_blocks",
    "router": "router",
    "bucket": "bucket",
}
_NUMBERS: Final = frozenset({"overlap_blocks"})


class _Error(msgspec.Struct):
    message: Any


class _Failure(msgspec.Struct):
    error: _Error


class Call(msgspec.Struct, frozen=True):
    """One HTTP request to a front door: what a shell sends."""

    method: str
    path: str
    content: bytes
    headers: dict[str, str]


def generate_call(request: Request, router_mode: str, worker_id: str, bucket: str) -> Call:
    """Return the call that has `request` served.

    Raises `RequestError` where no field of it names an endpoint (`PATHS`).
    """
    return Call(
        "POST",
        _path(request),
        msgspec.json.encode(request),
        _headers(router_mode, worker_id, bucket),
    )


def stream_call(request: Request, router_mode: str, worker_id: str, bucket: str) -> Call:
    """Return the call that has `request` served in chunks. Raises as `generate_call`."""
    return generate_call({**request, "stream": True}, router_mode, worker_id, bucket)


def route_call(request: Request, bucket: str) -> Call:
    """Return the call that asks what would be decided about `request`."""
    return Call("POST", "/v1/route", msgspec.json.encode(request), _headers("kv", "", bucket))


def decision_call(request_id: str) -> Call:
    """Return the call that asks why a served request went where it went."""
    return Call("GET", f"/v1/decisions/{request_id}", b"", {})


def authorization(api_key: str) -> dict[str, str]:
    """Return the headers of every call for a key, none for an empty one."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def read_head(response: httpx.Response) -> Answer:
    """Return where an answer comes from, its body left empty."""
    headers = response.headers
    return Answer(
        body={},
        worker_id=headers.get("x-kvmesh-worker", ""),
        overlap_blocks=int(headers.get("x-kvmesh-overlap-blocks", 0)),
        router=headers.get("x-kvmesh-router", ""),
        bucket=headers.get("x-kvmesh-bucket", ""),
        request_id=headers.get("x-request-id", ""),
    )


def read_late(head: Answer, line: str) -> Answer:
    """Return the head with what a comment of a stream tells of it: a front door that had to begin
    before it decided sends its headers so. One that has told its worker tells nothing more.
    """
    name, colon, value = line.removeprefix(": x-kvmesh-").partition(": ")
    field = _LATE.get(name)
    if not colon or field is None or not line.startswith(": x-kvmesh-"):
        return head
    number = whole_number(value, 0, MAX_COUNT) or 0
    return msgspec.structs.replace(head, **{field: number if field in _NUMBERS else value})


def read_answer(response: httpx.Response) -> Answer:
    """Return a whole answer."""
    return msgspec.structs.replace(read_head(response), body=read_object(response))


def read_object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises `TransportError` for anything else."""
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except UNREADABLE as error:
        raise TransportError(f"{response.url}: the answer is no JSON object: {error}") from error


def read_route(response: httpx.Response) -> Route:
    """Return what a router would decide."""
    view = read_object(response)
    endpoints = [
        Endpoint(
            worker_id=one["worker"],
            gpu_cache_usage_perc=one["cache_usage"],
            num_requests_waiting=one["waiting_requests"],
            active_blocks=one["active_blocks"],
            prefill_tokens=one["prefill_tokens"],
        )
        for one in view["candidates"]
    ]
    return Route(
        worker_id=view["worker"],
        total_blocks=view["total_blocks"],
        matches={one["worker"]: one["overlap_blocks"] for one in view["candidates"]},
        metrics=Metrics(endpoints),
        why=view["why"],
        bucket=view["bucket"],
    )


def read_chunk(response: httpx.Response, line: str) -> dict[str, Any] | None:
    """Return the JSON of one line of a stream, None for a line without any.

    Raises `TransportError` for an error event, and for what is no JSON.
    """
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == DONE:
        return None
    try:
        chunk: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except UNREADABLE as error:
        raise TransportError(f"{response.url}: a chunk is no JSON object: {error}") from error
    if "error" in chunk:
        raise TransportError(f"{response.url}: {_message(chunk) or chunk['error']}")
    return chunk


def refusal(response: httpx.Response) -> RequestError | NoWorkerError:
    """Return what an answer of an error status means; its body must have been read."""
    try:
        message = _message(msgspec.json.decode(response.content))
    except UNREADABLE:
        message = None
    said = f"{response.url}: {response.text[:200] if message is None else message}"
    if response.status_code == UNAVAILABLE:
        return NoWorkerError(said)
    return RequestError(said, status=response.status_code)


def unreachable(message: httpx.Request, error: httpx.HTTPError) -> TransportError:
    """Return what it means that a call could not be delivered."""
    return TransportError(
        f"{message.url}: {error!r}; is a kvmesh router or meta-router serving there?"
    )


def broken_off(response: httpx.Response, error: httpx.HTTPError) -> TransportError:
    """Return what it means that a stream ended before its end."""
    return TransportError(f"{response.url}: {error!r}")


def _path(request: Request) -> str:
    for field, path in PATHS.items():
        if field in request:
            return path
    raise RequestError(f"a request has one of {', '.join(PATHS)}, this has {sorted(request)}")


def _headers(router_mode: str, worker_id: str, bucket: str) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    if router_mode:
        headers["x-kvmesh-router-mode"] = router_mode
    if worker_id:
        headers["x-kvmesh-worker-id"] = worker_id
    if bucket:
        headers["x-kvmesh-bucket"] = bucket
    return headers


def _message(body: object) -> str | None:
    """Return the message of an error in OpenAI's shape, None in any other."""
    try:
        return str(msgspec.convert(body, _Failure).error.message)
    except msgspec.ValidationError:
        return None
