"""Meta-routers before buckets of routers, sidecars and engines, in this process, and chats."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

import httpx
import msgspec

from kvmesh.app.meta.command import MetaServer
from kvmesh.app.process.running import Stop
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.buckets.placing import BucketPolicy
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import (
    MetaRouterSettings,
    NatsSettings,
    RouterSettings,
    WorkerSettings,
)
from tests.integration.support.live_router import free_port, mockers, serving

WITHIN_S = 60.0
SYSTEM = "You are a helpful assistant."
QUESTIONS = ("What did I tell you about my profession?", "And what is my name?")


class TwoStageMesh:
    """`engines` dealt to `buckets` in turn, and two routers of each bucket."""

    def __init__(self, nats: NatsSettings, buckets: Sequence[str], engines: int = 4) -> None:
        self.nats = nats
        self.buckets = tuple(buckets)
        self.routers: list[str] = []
        self.workers = engines
        self._stack = contextlib.AsyncExitStack()

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        stop = Stop()
        self._stack = stack
        for number in range(self.workers):
            # No instant answers: the next turn comes after what routers tell each other.
            (mocker,) = await stack.enter_async_context(
                mockers(speedup_ratio=5.0, timing_profile="dynamo")
            )
            settings = WorkerSettings(
                engine_url=mocker.url,
                bucket=self.buckets[number % len(self.buckets)],
                worker_id=f"worker-{number}",
                nats=self.nats,
            )
            running = asyncio.create_task(Sidecar(settings).serve(stop))
            stack.push_async_callback(asyncio.wait, [running])
        stack.callback(stop.request)
        self.routers = await asyncio.gather(
            *(self._router(bucket, number) for bucket in self.buckets for number in range(2))
        )

    async def _router(self, bucket: str, number: int) -> str:
        port = free_port()
        settings = RouterSettings(
            bucket=bucket,
            router_id=f"{bucket}-{number}",
            seed=number + 1,
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=self.nats,
        )
        serves = serving(RouterServer(settings).serve, f"http://127.0.0.1:{port}")
        return await self._stack.enter_async_context(serves)

    async def front(self, policy: BucketPolicy = "round-robin") -> httpx.AsyncClient:
        """Start a meta-router; return a client of it once it knows all replicas."""
        port = free_port()
        settings = MetaRouterSettings(
            bucket_policy=policy,
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=self.nats,
        )
        url = f"http://127.0.0.1:{port}"
        await self._stack.enter_async_context(serving(MetaServer(settings).serve, url))
        client = httpx.AsyncClient(base_url=url, timeout=60)
        await self._stack.enter_async_context(client)
        await self.wait_known(client)
        return client

    async def wait_known(self, front: httpx.AsyncClient) -> None:
        """Wait until a meta-router would send to every router, and each of these to its workers."""
        deadline_s = time.monotonic() + WITHIN_S
        while not await self._known(front):
            assert time.monotonic() < deadline_s, "the mesh is not whole"
            await asyncio.sleep(0.02)

    async def _known(self, front: httpx.AsyncClient) -> bool:
        try:
            reported = (await front.get("/v1/status")).json()
            each = [(await front.get(f"{url}/v1/status")).json() for url in self.routers]
        except httpx.HTTPError:
            return False
        exact = [sum(one["trust"] == "exact" for one in said["workers"]) for said in each]
        ready = sum(map(len, reported["ready_replicas"].values()))
        return ready == len(each) and min(exact) == self.workers // len(self.buckets)


@contextlib.asynccontextmanager
async def two_stage_mesh(
    nats_url: str, namespace: str, buckets: Sequence[str] = ("chat", "code")
) -> AsyncIterator[TwoStageMesh]:
    nats = NatsSettings(nats_url=nats_url, namespace=namespace, stream_max_bytes=32 * 1024**2)
    async with contextlib.AsyncExitStack() as stack:
        mesh = TwoStageMesh(nats, buckets)
        await mesh.start(stack)
        yield mesh


class Turn(msgspec.Struct, frozen=True):
    worker: str
    bucket: str
    prompt_tokens: int
    cached_tokens: int
    text: str


async def converse(
    fronts: Sequence[httpx.AsyncClient], name: str, *, system: str = SYSTEM
) -> list[Turn]:
    """Have a chat of three turns, each at the next of `fronts`."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": introduce(name)})
    turns: list[Turn] = []
    for number, question in enumerate((*QUESTIONS, "")):
        turns.append(await ask(fronts[number % len(fronts)], messages))
        messages += [
            {"role": "assistant", "content": turns[-1].text},
            {"role": "user", "content": question},
        ]
    return turns


def introduce(name: str) -> str:
    """Return a first message that is worth finding again: many blocks, all of its own."""
    return f"My name is {name} and I work as a nurse." + f" {name} again." * 40


async def ask(front: httpx.AsyncClient, messages: Sequence[dict[str, str]], **headers: str) -> Turn:
    body = {"model": "mock", "messages": list(messages), "max_tokens": 20}
    answer = await front.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    details = usage["prompt_tokens_details"] or {}
    return Turn(
        answer.headers["x-kvmesh-worker"],
        answer.headers["x-kvmesh-bucket"],
        usage["prompt_tokens"],
        details.get("cached_tokens", 0),
        answer.json()["choices"][0]["message"]["content"],
    )


class Kept(msgspec.Struct, frozen=True):
    """Of all follow-ups: the shares with the bucket and the worker of the turn before, and of their
    prompt tokens that were cached.
    """

    buckets: float
    workers: float
    hits: float


def kept(chats: Sequence[Sequence[Turn]]) -> Kept:
    pairs = [(one[k - 1], one[k]) for one in chats for k in range(1, len(one))]
    return Kept(
        sum(before.bucket == after.bucket for before, after in pairs) / len(pairs),
        sum(before.worker == after.worker for before, after in pairs) / len(pairs),
        sum(after.cached_tokens for _, after in pairs)
        / sum(after.prompt_tokens for _, after in pairs),
    )
