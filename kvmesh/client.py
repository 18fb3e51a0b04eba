"""A small client of a kvmesh front door, router or meta-router: who answers, and why.

Any OpenAI client works against kvmesh. This one adds what such a client has no words for: which
router mode decides, a worker of your choice, or a routing function of your own.

async with Client("http://127.0.0.1:8000") as client:
    answer = await client.round_robin({"model": "mock", "messages": [...]})
    answer.worker_id, answer.overlap_blocks, answer.text

Source: the calls are those of NVIDIA Dynamo's early Python client (`random`, `round_robin`,
`direct`) and of its custom-router example (`find_matches_for_request`, `get_metrics`).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import httpx
import msgspec

from kvmesh.errors import NoWorkerError, RequestError, TransportError

Request = Mapping[str, Any]
"""The body of an OpenAI request, as JSON would have it."""

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


class Stream:
    """The chunks of an answer as they come. `head` says where it came from; its body is empty."""

    def __init__(self, response: httpx.Response) -> None:
        self.head = _answer(response, {})
        self._response = response

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Yield each chunk's JSON; raise `TransportError` when the answer breaks off."""
        try:
            async for line in self._response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == DONE:
                    continue
                chunk = msgspec.json.decode(data)
                if "error" in chunk:
                    raise TransportError(f"{self._response.url}: {chunk['error'].get('message')}")
                yield chunk
        except httpx.TransportError as error:
            raise TransportError(f"{self._response.url}: {error!r}") from error


class Client:
    """Sends requests to a front door at `url`. One per event loop; close it, or use `async with`.

    Every call raises `RequestError` when the request is refused, `NoWorkerError` when no worker
    can take it, `TransportError` when the front door does not answer within `timeout_s` seconds.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", *, api_key: str = "", timeout_s: float = 600.0
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s)

    async def __aenter__(self) -> Self:
        """Return this client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def generate(
        self, request: Request, *, router_mode: str = "", worker_id: str = "", bucket: str = ""
    ) -> Answer:
        """Send a request and wait for the whole answer.

        `router_mode` is one of `kvmesh router --router-mode`, by default the router's own;
        `worker_id` counts in mode `direct`; `bucket` is for a meta-router.
        """
        headers = _headers(router_mode, worker_id, bucket)
        response = await self._send("POST", _path(request), request, headers)
        return _answer(response, msgspec.json.decode(response.content))

    async def kv(self, request: Request, *, bucket: str = "") -> Answer:
        """Send a request where its prefix and the load make it cost least."""
        return await self.generate(request, router_mode="kv", bucket=bucket)

    async def random(self, request: Request, *, bucket: str = "") -> Answer:
        """Send a request to any worker."""
        return await self.generate(request, router_mode="random", bucket=bucket)

    async def round_robin(self, request: Request, *, bucket: str = "") -> Answer:
        """Send a request to the worker whose turn it is."""
        return await self.generate(request, router_mode="round-robin", bucket=bucket)

    async def direct(self, request: Request, worker_id: str, *, bucket: str = "") -> Answer:
        """Send a request to the worker named."""
        return await self.generate(
            request, router_mode="direct", worker_id=worker_id, bucket=bucket
        )

    async def custom(
        self, request: Request, custom_router: CustomRouter, *, bucket: str = ""
    ) -> Answer:
        """Send a request to the worker that `custom_router(matches, metrics)` names.

        Two round trips: the router is asked what every worker holds, then told who serves.
        """
        route = await self.route(request, bucket=bucket)
        worker_id = custom_router(route.matches, route.metrics)
        return await self.direct(request, worker_id, bucket=bucket or route.bucket)

    @asynccontextmanager
    async def stream(
        self, request: Request, *, router_mode: str = "", worker_id: str = "", bucket: str = ""
    ) -> AsyncGenerator[Stream]:
        """Send a request and give its chunks as they come; leaving the block gives it up."""
        headers = _headers(router_mode, worker_id, bucket)
        body = {**request, "stream": True}
        message = self._http.build_request(
            "POST", _path(request), content=msgspec.json.encode(body), headers=headers
        )
        response = await self._deliver(message, stream=True)
        try:
            if response.is_error:
                await response.aread()
                raise _refusal(response)
            yield Stream(response)
        finally:
            await response.aclose()

    async def route(self, request: Request, *, bucket: str = "") -> Route:
        """Ask what would be decided about a request: nothing is sent to a worker or booked."""
        headers = _headers("kv", "", bucket)
        response = await self._send("POST", "/v1/route", request, headers)
        return _route(msgspec.json.decode(response.content))

    async def decision(self, request_id: str) -> dict[str, Any]:
        """Return why a served request went where it went (`GET /v1/decisions/{request_id}`)."""
        response = await self._send("GET", f"/v1/decisions/{request_id}", None, {})
        detail: dict[str, Any] = msgspec.json.decode(response.content)
        return detail

    async def _send(
        self, method: str, path: str, body: Request | None, headers: dict[str, str]
    ) -> httpx.Response:
        content = b"" if body is None else msgspec.json.encode(body)
        message = self._http.build_request(method, path, content=content, headers=headers)
        response = await self._deliver(message, stream=False)
        if response.is_error:
            raise _refusal(response)
        return response

    async def _deliver(self, message: httpx.Request, *, stream: bool) -> httpx.Response:
        try:
            return await self._http.send(message, stream=stream)
        except httpx.HTTPError as error:
            raise TransportError(
                f"{message.url}: {error!r}; is a kvmesh router or meta-router serving there?"
            ) from error


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


def _answer(response: httpx.Response, body: dict[str, Any]) -> Answer:
    headers = response.headers
    return Answer(
        body=body,
        worker_id=headers.get("x-kvmesh-worker", ""),
        overlap_blocks=int(headers.get("x-kvmesh-overlap-blocks", 0)),
        router=headers.get("x-kvmesh-router", ""),
        bucket=headers.get("x-kvmesh-bucket", ""),
        request_id=headers.get("x-request-id", ""),
    )


def _route(view: dict[str, Any]) -> Route:
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


def _refusal(response: httpx.Response) -> RequestError | NoWorkerError:
    try:
        message = str(msgspec.json.decode(response.content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = response.text[:200]
    if response.status_code == UNAVAILABLE:
        return NoWorkerError(f"{response.url}: {message}")
    return RequestError(f"{response.url}: {message}", status=response.status_code)
