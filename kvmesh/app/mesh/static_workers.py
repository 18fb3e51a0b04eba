"""The workers of a router alone, without NATS: looked at over HTTP, their events over ZMQ."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from kvmesh._native import Booking
from kvmesh.actors.engine_messages import EngineSilent
from kvmesh.actors.messages import (
    RouterHeartbeat,
    WorkerGone,
    WorkerHeartbeat,
    WorkerLoad,
)
from kvmesh.actors.router import Router
from kvmesh.actors.static_registry import StaticRegistry
from kvmesh.app.members.engine_load import read_loads
from kvmesh.app.members.engine_probe import Served, ask_models, read_facts, read_weights
from kvmesh.app.members.warning_lines import NO_WORKER_ANSWERS, by_reason
from kvmesh.app.members.worker_option import StaticWorker
from kvmesh.app.mesh.discovery import Discovery
from kvmesh.app.mesh.engine_attachment import EngineAttachment, Rank
from kvmesh.app.mesh.router_mesh import Hear
from kvmesh.app.process.aio import AioDriver
from kvmesh.app.views.figure import Source
from kvmesh.app.views.mesh_figures import INDEX
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import secret_mark
from kvmesh.core.engines.facts import EngineFacts
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.engines.registry import connector_of, connectors, engine_of, needs_naming
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.predictions import Distrust
from kvmesh.core.routing.disaggregation import role_marks
from kvmesh.errors import ConfigError, SlowError, TransportError
from kvmesh.observe import actor_log, get_logger
from kvmesh.tasks import attempt, end_tasks, supervise
from kvmesh.transport.http.upstream.client import UpstreamPool

PROBE_S = 2.0
PANIC = "no engine answers its probes in time: requests go there all the same (panic)"
FACTS_S = 30.0
"""How often an engine is asked again for its event publishers while it has none."""


class StaticOptions(msgspec.Struct, frozen=True):
    """`secret` keys block hashes; `may_panic` is `StaticRegistry`'s."""

    bucket: str
    secret: bytes = b""
    may_panic: bool = True


class StaticWorkers:
    """Keeps the configured workers in the router, healthy or not, as they answer.

    With `index` their KV events are folded into it as they come: overlaps are exact for every
    worker that publishes them, approximate for the rest.
    """

    def __init__(
        self,
        workers: Sequence[StaticWorker],
        router: Router,
        options: StaticOptions,
        index: KvIndex | None,
        make_pool: Callable[[], UpstreamPool] = UpstreamPool,
    ) -> None:
        self._make_pool = make_pool
        self.draining = False
        self._checked = False
        self._router = router
        self._known = router.scheduler.workers
        self._known.settled = False
        self._bucket = options.bucket
        self._secret_mark = secret_mark(options.secret)
        self._index = index
        self._driver = AioDriver(log=actor_log())
        self._registry = StaticRegistry(
            router.scheduler.workers, index, router=router.name, may_panic=options.may_panic
        )
        self._secret = options.secret
        self._discovery: Discovery | None = None
        self._engines = [self._attach(worker) for worker in workers]
        self._attached: dict[WorkerId, EngineAttachment] = {}
        self._running: list[asyncio.Task[None]] = []
        self._pool: UpstreamPool | None = None
        self._log = get_logger()

    def discover_by(self, discovery: Discovery) -> None:
        """Take the workers that `discovery` finds, from the start on."""
        self._discovery = discovery

    def replace(self, workers: Sequence[StaticWorker]) -> None:
        """Follow these workers from now on: those that stay as they were are not disturbed."""
        for engine in [one for one in self._engines if one.static not in workers]:
            self._engines.remove(engine)
            engine.close()
            for rank in engine.ranks:
                self._attached.pop(rank.worker, None)
                self._driver.post(self._registry.name, WorkerGone(rank.worker))
        known = {one.static for one in self._engines}
        self._engines += [self._attach(worker) for worker in workers if worker not in known]

    def _attach(self, worker: StaticWorker) -> EngineAttachment:
        return EngineAttachment(worker, self._driver, self._index, self._secret)

    def why_not(self) -> str:
        """Return why no request should come; "" when all were looked at and some answer."""
        if self.draining:
            return "draining"
        if not self._checked:
            return "looking at the workers"
        panic = self._known.panic
        return "" if self._registry.answering or panic else NO_WORKER_ANSWERS

    def warnings(self) -> tuple[str, ...]:
        """Return why workers are routed by less than their events, one line each."""
        panic = (PANIC,) if self._known.panic else ()
        if self._index is None:
            return panic
        never = by_reason(self._router.unmatched(), "no prefix can match")
        served = self._registry.answering
        reasons = ((w, why) for w, why in self._registry.reasons.items() if w in served)
        return (*panic, *never, *by_reason(reasons, "routed approximately"))

    def describe(self) -> dict[str, object]:
        """Return who answers and what was followed."""
        return {
            "kv_events": self._index is not None,
            "workers_answering": sorted(self._registry.answering),
            "panic": self._known.panic,
            "warnings": self.warnings(),
            "engines": {one.static.worker: one.statistics() for one in self._engines},
        }

    def figures(self) -> Iterator[Source]:
        """Yield what is counted in this part."""
        if self._index is not None:
            yield INDEX.of(self._index.statistics)

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return nothing: a router alone has no peers and no journal."""
        return ()

    def digests(self) -> tuple[int, int]:
        """Return that nothing is ever compared."""
        return 0, 0

    post: None = None
    outbox: None = None
    """Nobody: a router alone has no replicas."""

    @property
    def released(self) -> Callable[[Booking], None] | None:
        """Return who has to know of released bookings; None where no events are followed."""
        return None if self._index is None else self._released

    def _released(self, booking: Booking) -> None:
        """Note which engines were given something to store: events must follow."""
        if booking.uncached_tokens <= self._router.sizes.size:
            return
        if booking.prefilling and booking.streams:
            return
        attachment = self._attached.get(booking.worker)
        if attachment is not None:
            attachment.served(booking.worker)

    def share_streams(self, hear: Hear) -> None:
        """Return nothing: there are no siblings."""

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        """Read the engine's history anew, if its events are followed; guesses may miss."""
        attachment = self._attached.get(worker)
        if attachment is not None and attachment.reread(worker):
            self._log.warning(
                "predictions miss, reading the engine's history again",
                worker=worker,
                misses=distrust.misses,
                answers=distrust.answers,
            )

    def served(self, worker: WorkerId, answer: CacheHit) -> None:
        """Pass on what an answer says of an engine's cache, where its events are followed."""
        attachment = self._attached.get(worker)
        if attachment is not None:
            attachment.answered(worker, answer)

    def emptied(self, worker: WorkerId) -> None:
        """Have the worker's cache followed as empty, where its events are followed."""
        attachment = self._attached.get(worker)
        if attachment is not None:
            attachment.emptied(worker)

    def drain(self, worker: WorkerId, *, draining: bool) -> None:
        """Give the worker nothing new, or use it again; forgotten with the process."""
        self._known.membership.hold(worker, draining=draining)

    async def start(self, advertise_url: str) -> None:
        """Look at every worker once, then keep looking."""
        del advertise_url
        driver = self._driver
        driver.add(self._router)
        driver.add(self._registry)
        driver.start()
        self._running.append(supervise("actors", driver.run, "end"))
        self._pool = pool = self._make_pool()
        if self._discovery is not None:
            self.replace(await self._discovery.check())
            following = partial(self._discovery.run, self.replace)
            self._running.append(supervise("discover workers", following))
        await asyncio.gather(*(self._check(pool, engine) for engine in self._engines))
        while any(box.waiting for box in driver.statistics().mailboxes.values()):  # noqa: ASYNC110  turns of our own
            await asyncio.sleep(0)
        self._checked = self._known.settled = True
        looking = partial(self._keep_checking, pool)
        self._running.append(supervise("probe workers", looking))

    async def failed(self) -> None:
        """Wait for a part to fail, and raise its error."""
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop looking and following; safe to call twice."""
        for engine in self._engines:
            engine.close()
        self._driver.stop()
        await end_tasks(*self._running)
        if self._pool is not None:
            await self._pool.close()

    async def _keep_checking(self, pool: UpstreamPool) -> None:
        """Look at each engine in turn of its own: one that hangs must not make the others old."""
        uses_caches: dict[EngineAttachment, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(PROBE_S)
                uses_caches = {
                    engine: check for engine, check in uses_caches.items() if not check.done()
                }
                for engine in self._engines:
                    if engine not in uses_caches:
                        check = partial(self._check, pool, engine)
                        uses_caches[engine] = group.create_task(attempt("probe workers", check))

    async def _check(self, pool: UpstreamPool, engine: EngineAttachment) -> None:
        """See whether the engine answers, what it serves and how busy it is."""
        url = engine.static.url
        served: Served | int = 0
        slow = False
        try:
            served = await ask_models(pool, url)
        except SlowError:
            slow = True
        if engine not in self._engines:
            return
        if not isinstance(served, Served):
            # It may come back as another one: ask for everything then.
            engine.checked_s = 0.0
            for rank in engine.ranks:
                beat = self._heartbeat(engine, rank, Served(())) if engine.facts is None else None
                silent = EngineSilent(rank.worker, slow, served, beat)
                self._driver.post(self._registry.name, silent)
            return
        await self._learn(pool, engine)
        if engine.facts is not None:
            engine.renew(await read_weights(pool, url, engine.facts.weights_path))
        loads = await read_loads(pool, url, engine.facts or EngineFacts())
        if engine not in self._engines:
            # It left while it was looked at: what is said of it now would bring it back.
            return
        for rank in engine.ranks:
            self._attached[rank.worker] = engine
            beat = self._heartbeat(engine, rank, served)
            load = loads.get(rank.number or 0)
            if load is not None:
                beat = msgspec.structs.replace(beat, load=load)
            self._driver.post(self._registry.name, beat)

    async def _learn(self, pool: UpstreamPool, engine: EngineAttachment) -> None:
        now = time.monotonic()
        followed = all(engine.follows(rank.worker) for rank in engine.ranks)
        if engine.checked_s and (followed or now < engine.checked_s + FACTS_S):
            return
        facts = await read_facts(pool, engine.static.url)
        if facts is None:
            return
        engine.checked_s = now
        try:
            departed = engine.learn(facts)
        except (ConfigError, TransportError) as error:
            worker = engine.static.worker
            self._log.error("worker's KV events cannot be followed", worker=worker, error=error)
            return
        for gone in departed:
            self._attached.pop(gone, None)
            self._driver.post(self._registry.name, WorkerGone(gone))

    def _heartbeat(self, engine: EngineAttachment, rank: Rank, served: Served) -> WorkerHeartbeat:
        static, facts = engine.static, engine.facts
        role = static.role or (facts.role if facts else "both")
        bootstrap_port = static.bootstrap_port or (facts.bootstrap_port if facts else 0)
        kind = facts.kind if facts else ""
        way = connectors().get(static.connector) or connector_of(kind, bootstrap_port)
        labels, taints = role_marks(role, whole=way.whole)
        return WorkerHeartbeat(
            secret_mark=self._secret_mark,
            worker=rank.worker,
            bucket=self._bucket,
            epoch=1,
            last_seq=engine.events(rank.worker),
            url=engine.static.url,
            models=engine.static.models or served.models,
            adapters=served.adapters,
            block_size=engine.block_size(rank.worker),
            load=WorkerLoad(),
            events=engine.follows(rank.worker),
            wants_answers=engine.wants_answers(rank.worker),
            dp_rank=rank.number,
            labels=(*static.labels, *labels),
            taints=(*static.taints, *taints),
            bootstrap_port=bootstrap_port if f"{role}-port" in way.needs else 0,
            connector=static.connector or msgspec.UNSET,
            health_path=facts.health_path if facts else "/health",
            engine=facts.kind if facts and needs_naming(facts.kind) else msgspec.UNSET,
            unsalted=engine_of(facts.kind).unsalted_paths if facts else (),
            weights=engine.weights or msgspec.UNSET,
        )
