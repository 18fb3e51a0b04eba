"""A router of your own as a service of the mesh: it follows a bucket, chooses, books, forwards.

Usage: custom_router_service.py [NATS_URL [BUCKET [PORT]]]

It serves POST /v1/completions with the prompt as token ids. What it books counts at every router
of the bucket, and what they book here. `http.server` stands for your web framework.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

import kvmesh
from kvmesh import (
    BookingOptions,
    Follower,
    KvIndexer,
    KvMeshError,
    KvMetrics,
    KvMetricsAggregator,
    failed_attempt,
    status_attempt,
)

LOAD_WEIGHT = 1000.0
"""How many cached blocks a worker must have more for being full rather than idle."""

BAD_REQUEST, BAD_GATEWAY, UNAVAILABLE = 400, 502, 503

Head = Callable[[int, str], None]
Write = Callable[[bytes], None]


def calculate_score(cache_hits: int, load: float) -> float:
    """Return what a worker is worth, in cached blocks."""
    return cache_hits - LOAD_WEIGHT * load


class Request:
    """A completion; `tokens` are its prompt's ids. Raises `ValueError` for another body."""

    def __init__(self, data: bytes) -> None:
        self.body: dict[str, Any] = json.loads(data)
        self.tokens: list[int] = self.body["prompt"]
        self.max_tokens = int(self.body.get("max_tokens", 16))
        if not all(isinstance(one, int) for one in self.tokens):
            raise ValueError("prompt is a list of token ids")


class Router:
    """Chooses a worker for each request and streams its answer."""

    def __init__(self, listener: Follower, http: httpx.AsyncClient) -> None:
        self.listener = listener
        self.kv_indexer = KvIndexer(listener)
        self.metrics_aggregator = KvMetricsAggregator(listener)
        self.http = http

    async def route_request(self, request: Request) -> str:
        """Return the id of the worker that shall serve."""
        matches = self.kv_indexer.find_matches_for_request(request.tokens)
        metrics = self.metrics_aggregator.get_metrics()
        return self.select_best_worker(matches, metrics)

    def select_best_worker(self, matches: dict[str, int], metrics: KvMetrics) -> str:
        """Return the worker with the best score."""
        scores = {}
        for worker_id, cache_hits in matches.items():
            load = metrics.get_worker_load(worker_id)
            scores[worker_id] = calculate_score(cache_hits, load)
        if not scores:
            raise kvmesh.NoWorkerError("no worker may be given requests")
        return max(scores, key=scores.__getitem__)

    async def serve(self, data: bytes, head: Head, write: Write) -> None:
        """Answer one request: `head(status, worker)`, then the body by `write`, which may block."""
        try:
            request = Request(data)
            worker_id = await self.route_request(request)
            # Nothing was awaited in between: the next request sees this booking.
            booked = self.listener.book(
                worker_id, request.tokens, BookingOptions(output_tokens=request.max_tokens)
            )
        except (ValueError, KeyError, TypeError, kvmesh.RequestError) as error:
            head(BAD_REQUEST, "")
            write(repr(error).encode())
        except KvMeshError as error:
            head(UNAVAILABLE, "")
            write(str(error).encode())
        else:
            with booked:
                await self.forward(request, booked, head, write)

    async def forward(
        self, request: Request, booked: kvmesh.Reservation, head: Head, write: Write
    ) -> None:
        """Send a booked request to its worker and pass on what comes back."""
        engine = self.listener.engine(booked.worker_id)
        url, begun, events = f"{engine.url}/v1/completions", False, 0
        try:
            async with self.http.stream(
                "POST", url, json=request.body, headers=engine.headers
            ) as answer:
                head(answer.status_code, booked.worker_id)
                begun = True
                async for chunk in answer.aiter_bytes():
                    booked.first_token()
                    events += chunk.count(b"data: ")
                    booked.grow(events)
                    await asyncio.to_thread(write, chunk)
                if answer.is_error:
                    booked.finish(status_attempt(answer.status_code))
        except httpx.HTTPError as error:
            booked.finish(failed_attempt("reset"))
            if begun:
                raise
            head(BAD_GATEWAY, booked.worker_id)
            write(str(error).encode())


def make_server(router: Router, loop: asyncio.AbstractEventLoop, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server whose threads hand requests to `router` on `loop`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))

            def head(status: int, worker_id: str) -> None:
                self.send_response(status)
                self.send_header("x-kvmesh-worker", worker_id)
                self.end_headers()

            def write(chunk: bytes) -> None:
                self.wfile.write(chunk)

            serving = router.serve(data, head, write)
            asyncio.run_coroutine_threadsafe(serving, loop).result()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    return Server(("127.0.0.1", port), Handler)


async def main(nats_url: str, bucket: str, port: int) -> None:
    """Serve until interrupted."""
    async with kvmesh.follow(nats_url, bucket) as listener, httpx.AsyncClient(timeout=60) as http:
        server = make_server(Router(listener, http), asyncio.get_running_loop(), port)
        print(f"serving http://127.0.0.1:{server.server_port}", listener.name, flush=True)
        try:
            await asyncio.to_thread(server.serve_forever)
        finally:
            server.shutdown()


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            main(
                arguments.get(1, ""),
                arguments.get(2, "default"),
                int(arguments.get(3, "9000")),
            )
        )
