"""An asynchronous client of a kvmesh front door: the methods of `sync.Client`, awaited.

async with AsyncClient("http://127.0.0.1:8000") as client:
    answer = await client.round_robin({"model": "mock", "messages": [...]})
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from kvmesh.client.protocol import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    Answer,
    Call,
    CustomRouter,
    Request,
    Route,
    authorization,
    broken_off,
    decision_call,
    generate_call,
    read_answer,
    read_chunk,
    read_head,
    read_late,
    read_object,
    read_route,
    refusal,
    route_call,
    stream_call,
    unreachable,
)


class AsyncStream:
    """The chunks of an answer as they come. `head` says where it came from, if the front door had
    to begin before it decided with the first chunk; its body is empty.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.head = read_head(response)
        self._response = response

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Yield each chunk's JSON; raise `TransportError` when the answer breaks off."""
        response = self._response
        try:
            late = not self.head.worker_id
            async for line in response.aiter_lines():
                if late and line.startswith(":"):
                    self.head = read_late(self.head, line)
                    continue
                chunk = read_chunk(response, line)
                if chunk is not None:
                    late = False
                    yield chunk
        except httpx.TransportError as error:
            raise broken_off(response, error) from error


class AsyncClient:
    """Sends requests to a front door at `url`. One per event loop; close it, or use `async with`.

    Every call raises `RequestError` when the request is refused, `NoWorkerError` when no worker
    can take it, `TransportError` when the front door does not answer within `timeout_s` seconds.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        headers = authorization(api_key)
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
        call = generate_call(request, router_mode, worker_id, bucket)
        return read_answer(await self._send(call))

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
    ) -> AsyncGenerator[AsyncStream]:
        """Send a request and give its chunks as they come; leaving the block gives it up."""
        call = stream_call(request, router_mode, worker_id, bucket)
        response = await self._deliver(call, stream=True)
        try:
            if response.is_error:
                await response.aread()
                raise refusal(response)
            yield AsyncStream(response)
        finally:
            await response.aclose()

    async def route(self, request: Request, *, bucket: str = "") -> Route:
        """Ask what would be decided about a request: nothing is sent to a worker or booked."""
        return read_route(await self._send(route_call(request, bucket)))

    async def decision(self, request_id: str) -> dict[str, Any]:
        """Return why a served request went where it went (`GET /v1/decisions/{request_id}`)."""
        return read_object(await self._send(decision_call(request_id)))

    async def _send(self, call: Call) -> httpx.Response:
        response = await self._deliver(call, stream=False)
        if response.is_error:
            raise refusal(response)
        return response

    async def _deliver(self, call: Call, *, stream: bool) -> httpx.Response:
        message = self._http.build_request(
            call.method, call.path, content=call.content, headers=call.headers
        )
        try:
            return await self._http.send(message, stream=stream)
        except httpx.HTTPError as error:
            raise unreachable(message, error) from error
