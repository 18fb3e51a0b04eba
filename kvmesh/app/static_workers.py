"""Workers from the command line: a router alone, without NATS and without events."""

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WorkerSeen
from kvmesh.actors.router import Router
from kvmesh.app.engine_probe import load_of, read_gauges, read_models
from kvmesh.core.decision import LoadReport, Trust, WorkerInfo
from kvmesh.core.events import WorkerId
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.transport.http.upstream import UpstreamPool

PROBE_S = 2.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StaticWorker(msgspec.Struct, frozen=True):
    """One engine of the configuration."""

    worker: WorkerId
    url: str
    models: tuple[str, ...] = ()


def parse_workers(texts: Sequence[str]) -> list[StaticWorker]:
    """Return the workers written `[name=]http://host:port[@model]`.

    Raises `ConfigError` naming the value and the remedy.
    """
    if not texts:
        raise ConfigError("--no-kv-events needs at least one --worker http://host:port")
    workers: dict[str, StaticWorker] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            name, rest = "", text
        url, _, model = rest.partition("@")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"--worker {text!r}: write [name=]http://host:port[@model]")
        name = name or re.sub(r"[^A-Za-z0-9_-]", "-", parts.netloc)[:64]
        if name in workers:
            raise ConfigError(
                f"--worker {text!r}: two workers are called {name}; name= one of them"
            )
        workers[name] = StaticWorker(WorkerId(name), url.rstrip("/"), (model,) if model else ())
    return list(workers.values())


class StaticWorkers:
    """Keeps the configured workers in the router, healthy or not, as they answer."""

    def __init__(self, workers: Sequence[StaticWorker], router: Router, bucket: str) -> None:
        self.draining = False
        self._workers = list(workers)
        self._router = router
        self._bucket = bucket
        self._answering: set[WorkerId] = set()
        self._running: asyncio.Task[None] | None = None
        self._log = get_logger()

    def why_not(self) -> str:
        """Return why no request should come; "" when some worker answers."""
        if self.draining:
            return "draining"
        return "" if self._answering else "no worker answers"

    def describe(self) -> dict[str, object]:
        """Return how many workers answer."""
        return {"kv_events": False, "workers_answering": sorted(self._answering)}

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return nothing: a router alone has no peers and no journal."""
        return ()

    def digests(self) -> tuple[int, int]:
        """Return that nothing is ever compared."""
        return 0, 0

    def tell(self, message: Message) -> None:
        """Nobody shares these workers."""

    async def start(self, advertise_url: str) -> None:
        """Look at every worker once, then keep looking."""
        del advertise_url
        pool = UpstreamPool()
        await asyncio.gather(*(self._look(pool, worker) for worker in self._workers))
        self._running = asyncio.create_task(self._keep_looking(pool), name="probe workers")

    async def failed(self) -> None:
        """Wait for the probing to fail, and raise its error."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Stop looking; safe to call twice."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _keep_looking(self, pool: UpstreamPool) -> None:
        try:
            while True:
                await asyncio.sleep(PROBE_S)
                await asyncio.gather(*(self._look(pool, worker) for worker in self._workers))
        finally:
            await pool.close()

    async def _look(self, pool: UpstreamPool, worker: StaticWorker) -> None:
        served = await read_models(pool, worker.url)
        name = worker.worker
        registry = self._router.scheduler.workers
        answers = served is not None
        if answers is not (name in self._answering):
            self._log.info("worker changed", worker=name, answering=answers)
        if served is None:
            self._answering.discard(name)
            registry.membership.observe(name, 1, time.monotonic(), ready=False)
            return
        self._answering.add(name)
        models = worker.models or served
        gauges = (await read_gauges(pool, worker.url)).get(0)
        heartbeat = WorkerHeartbeat(
            worker=name,
            bucket=self._bucket,
            epoch=1,
            last_seq=0,
            url=worker.url,
            models=models,
            block_size=0,
            events=False,
        )
        total_blocks = 0
        if gauges is not None:
            heartbeat = msgspec.structs.replace(heartbeat, load=load_of(gauges))
            load = heartbeat.load
            total_blocks = load.total_blocks
            registry.report(
                name,
                LoadReport(
                    load.running_requests,
                    load.waiting_requests,
                    load.used_blocks,
                    load.total_blocks,
                ),
            )
        registry.membership.observe(name, 1, time.monotonic(), ready=True)
        registry.describe(name, WorkerInfo(models, total_blocks, Trust.APPROX))
        self._router.receive(WorkerSeen(heartbeat), time.monotonic())
