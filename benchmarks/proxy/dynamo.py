"""Dynamo's routing core behind kvmesh's data plane: a peer whose own frontend needs Dynamo workers.

`python -m benchmarks.proxy.dynamo PORT URL…` asks `ai-dynamo-runtime`'s SelectionService, with its
default weights, which engine gets a chat; the service follows the engines' KV events over ZMQ
itself and is told of each request's first byte, every 16 chunks, and the end.
Source: dynamo/lib/bindings/python, SelectionService of 1.6.1.
"""

import asyncio
import gc
import itertools
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec
import uvloop

from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import WAIT, Outcome, Target, Wait
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

BLOCK_SIZE = 16
KV_BLOCKS = 8192
"""What the benchmark's engines have."""
MODEL = "m"


class Selected:
    """One chat: the service chooses and books, then learns how it goes."""

    forward: Forward

    def __init__(self, service: Any, urls: Sequence[str], name: str, tokens: list[int]) -> None:
        self._service = service
        self._urls = urls
        self._name = name
        self._tokens = tokens
        self._target: Target | Problem | None = None
        self._choosing: asyncio.Task[None] | None = None
        self._begun = False
        self._telling: set[asyncio.Future[Any]] = set()
        self._blocks = 0

    def next_target(self) -> Target | Problem | Wait | None:
        if self._choosing is None:
            self._choosing = asyncio.create_task(self._choose())
            return WAIT
        target, self._target = self._target, None
        return target

    async def _choose(self) -> None:
        wish = {"model_name": MODEL, "token_ids": self._tokens, "selection_id": self._name}
        try:
            chosen = await self._service.select_and_reserve(wish)
            self._target = Target(self._urls[chosen["worker_id"]])
        except RuntimeError as error:
            self._target = Problem(503, f"Dynamo selects no worker: {error}", "no_worker")
        self.forward.proceed()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        del failure
        return False

    def on_head(self, status: int) -> Headers:
        del status
        return ()

    def on_tokens(self, tokens: int) -> None:
        if not self._begun:
            self._begun = True
            self._report(self._service.prefill_complete(self._name))
        blocks = tokens // BLOCK_SIZE
        for _ in range(blocks - self._blocks):
            self._report(self._service.add_output_block(self._name))
        self._blocks = blocks

    def on_finish(self, outcome: Outcome) -> None:
        del outcome
        self._report(self._service.free_reservation(self._name))

    def _report(self, answer: Any) -> None:
        if answer is not None:
            publishing = asyncio.ensure_future(answer)
            self._telling.add(publishing)
            publishing.add_done_callback(self._telling.discard)


async def add_engine(service: Any, pool: UpstreamPool, number: int, url: str) -> None:
    """Have the service follow an engine that tells of its events as vLLM does."""
    body = await fetch_ok(pool, url, "/kv_event_sources")
    assert body is not None, f"{url} does not tell where it publishes its KV events"
    source = msgspec.json.decode(body)["0"]
    await service.upsert_worker(
        {
            "worker_id": number,
            "model_name": MODEL,
            "endpoint": url,
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": source["endpoint"],
            "total_kv_blocks": KV_BLOCKS,
            "max_num_batched_tokens": 8192,
        }
    )


async def main() -> None:
    service = import_module("dynamo._core").SelectionService()
    port, urls = int(sys.argv[1]), sys.argv[2:]
    tokenizer, names, pool = load_tokenizer(None), itertools.count(), UpstreamPool()
    for number, url in enumerate(urls):
        await add_engine(service, pool, number, url)

    def handle(exchange: Exchange) -> None:
        body = exchange.request.body
        if not body:
            exchange.fail(Problem(404, "only chats are routed here", "not_found"))
            return
        tokens = tokenizer.encode_chat(ChatInput.from_body(body)).tolist()
        plan = Selected(service, urls, str(next(names)), tokens)
        plan.forward = Forward(exchange, pool)
        plan.forward.begin(plan)

    server = HttpServer(handle)
    await server.start("127.0.0.1", port)
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
