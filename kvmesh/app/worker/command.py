"""`kvmesh worker`: the sidecar that puts one unchanged engine on the mesh."""

import asyncio
import contextlib
import secrets
import time
from functools import partial
from urllib.parse import urlsplit

from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineAnswers,
    EngineLoad,
    EngineServes,
    PromptServed,
)
from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import Reread
from kvmesh.actors.messages import Drain, Dump, Resync, Status, WorkerLoad, WriteFormat
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions, PublisherStatistics
from kvmesh.app.members.engine_feed import EngineFeed
from kvmesh.app.members.engine_probe import (
    given_endpoints,
    read_facts,
    refuse_collisions,
)
from kvmesh.app.members.load_feed import LoadFeed
from kvmesh.app.members.worker_option import check_port, parse_words
from kvmesh.app.mesh.plane import event_plane, subjects_for
from kvmesh.app.process.aio import AioDriver
from kvmesh.app.process.build import own_version
from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.app.process.running_mesh import mesh_secret
from kvmesh.app.views.sidecar_figures import RankFacts, SidecarFacts
from kvmesh.app.worker.checkpoints import Checkpoints
from kvmesh.app.worker.engine_watch import EngineWatch, WatchedEngine
from kvmesh.app.worker.pages import SidecarPages
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.advice import how_to_publish
from kvmesh.core.engines.facts import EngineFacts, EventEndpoint, base_of
from kvmesh.core.engines.registry import connector_of, connectors
from kvmesh.core.journal.ordering import NOTHING_FITS
from kvmesh.core.routing.disaggregation import role_marks
from kvmesh.errors import ConfigError
from kvmesh.observe import actor_log, configure_logging, get_logger
from kvmesh.ports import Control, EventPlane, Handler
from kvmesh.settings.member_name import check_name, name_of
from kvmesh.settings.roles import WorkerSettings
from kvmesh.settings.secret_file import read_credential
from kvmesh.tasks import keep_running, supervise
from kvmesh.transport.http.upstream.client import UpstreamOptions, UpstreamPool
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions

WAIT_FOR_ENGINE_S = 0.5
WAITING_SAID_S = 10.0
WAITING_FOR_ENGINE = (
    "start the engine, or correct --engine-url: waiting for the engine to answer /v1/models"
)


class Sidecar:
    """One engine's sidecar: a publisher per data-parallel rank.

    With a `model` the engine must serve it. `running` is set once the engine is on the mesh; then
    `models` are what it serves.
    """

    def __init__(self, settings: WorkerSettings, *, model: str = "") -> None:
        self.running = asyncio.Event()
        self.models: tuple[str, ...] = ()
        self._model = model
        self._settings = settings
        self._url = base_of(settings.engine_url)
        parts = urlsplit(self._url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"--engine-url {settings.engine_url!r}: write http://host:port")
        shares, role = settings.connector, settings.role
        place = f"--kv-connector {shares.kv_connector}"
        check_port(shares.kv_connector, role, shares.bootstrap_port, place)
        name = check_name(settings.worker_id or name_of(parts.netloc), "--worker-id")
        self._name = name
        self._subjects = subjects_for(settings.nats, settings.bucket)
        self._plane = event_plane(settings.nats, "worker", settings.bucket, name)
        self._log = get_logger(worker=name)
        self._ranks: list[tuple[int, Publisher]] = []
        self._sources: dict[str, EventSubscription] = {}
        self._checkpoints: dict[str, Checkpoints] = {}
        self._driver: AioDriver | None = None
        self._answering = False

    async def serve(self, stop: Stop) -> None:
        """Run until `stop`. Raises `ConfigError` when the engine publishes no events."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            credential = read_credential(settings.engine_key_file, "--engine-key-file")
            pool = UpstreamPool(options=UpstreamOptions(authorization=credential))
            stack.push_async_callback(pool.close)
            facts = await self._wait_for_engine(pool, stop)
            if facts is None:
                return
            self._take_models(facts)
            endpoints = self._endpoints(facts) if settings.kv_events else ()
            ranks = [endpoint.rank for endpoint in endpoints] or list(range(max(1, facts.ranks)))
            alone = len(ranks) == 1
            plane = self._plane
            await first_of(stop.wait(), plane.connect(patient=True))
            if stop.requested and not plane.connected:
                return
            stack.push_async_callback(plane.close)
            # Streams are the routers' to make: a worker needs no right but to its own subjects.
            journal = await plane.journal(settings.bucket, ensure=False)
            driver = AioDriver(journal=journal, bus=plane.bus, log=actor_log())
            for rank in ranks:
                self._add_rank(driver, rank, facts, alone=alone)
            for rank, publisher in self._ranks:
                worker = self._worker(rank, alone=alone)
                control = await self._control(plane, driver, publisher, worker)
                stack.push_async_callback(control.close)
            driver.start()
            self._driver, self._answering = driver, True
            running = supervise("actors", driver.run, "end")
            stack.callback(driver.stop)
            for endpoint, (_, publisher) in zip(endpoints, self._ranks, strict=settings.kv_events):
                stack.callback(self._follow(driver, endpoint, publisher).close)
            loads = self._load_feed(driver, facts)
            loads.start()
            stack.callback(loads.close)
            self._log.info(
                "sidecar runs", engine=self._url, ranks=len(ranks), kv_events=settings.kv_events
            )
            self.running.set()
            watch = EngineWatch(
                WatchedEngine(
                    self._url,
                    facts.health_path,
                    self.models,
                    settings.load_interval_s,
                    facts.weights_path,
                    facts.weights,
                ),
                pool,
                loads,
                self._sources,
                partial(self._report, driver),
            )
            watching = keep_running("watch the engine", watch.run)
            await first_of(stop.wait(), asyncio.shield(running), watching)
            for _, publisher in self._ranks:
                driver.post(publisher.name, Drain())
            await asyncio.sleep(0)

    async def _wait_for_engine(self, pool: UpstreamPool, stop: Stop) -> EngineFacts | None:
        """Ask until the engine answers; None when the process shall end first."""
        loop, logged_s, say = asyncio.get_running_loop(), -WAITING_SAID_S, self._log.info
        while not stop.requested:
            facts = await read_facts(pool, self._url)
            if facts is not None:
                return facts
            if loop.time() - logged_s >= WAITING_SAID_S:
                logged_s = loop.time()
                say(WAITING_FOR_ENGINE, engine=self._url)
                say = self._log.warning  # an engine that starts beside this one has no trouble yet
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), WAIT_FOR_ENGINE_S)
        return None

    def waiting(self) -> str:
        """Return what of NATS the start waits for; "" when it does not."""
        return self._plane.waiting()

    def facts(self) -> SidecarFacts:
        """Return what this sidecar knows of its engine and of NATS now."""
        joined = self.running.is_set()
        return SidecarFacts(
            engine=self._url,
            joined=joined,
            answering=self._answering,
            connected=joined and self._plane.connected,
            waiting=self.waiting(),
            refused=self._plane.warnings(),
            ranks=tuple(self._rank_facts(publisher) for _, publisher in self._ranks),
        )

    def _rank_facts(self, publisher: Publisher) -> RankFacts:
        assert self._driver is not None
        source = self._sources.get(publisher.name)
        return RankFacts(
            beat=publisher.heartbeat(),
            publisher=publisher.statistics(),
            publish_seconds=publisher.publish_seconds(),
            source=source.statistics() if source else None,
            mailbox=self._driver.statistics().mailboxes[publisher.name],
        )

    def workers(self) -> tuple[WorkerId, ...]:
        """Return the names under which the engine's ranks are on the mesh; none before it is."""
        alone = len(self._ranks) == 1
        return tuple(self._worker(rank, alone=alone) for rank, _ in self._ranks)

    def _take_models(self, facts: EngineFacts) -> None:
        self.models, self._weights = facts.models, facts.weights
        if self._model and self._model not in facts.models:
            served = ", ".join(facts.models) or "none that it names"
            raise ConfigError(
                f"model {self._model!r}: the engine at {self._url} serves {served}; name one of "
                "these, or none"
            )

    def _endpoints(self, facts: EngineFacts) -> tuple[EventEndpoint, ...]:
        settings = self._settings
        endpoints = facts.endpoints
        if settings.kv_events_endpoint:
            endpoints = given_endpoints(
                settings.kv_events_endpoint,
                settings.kv_replay_endpoint,
                facts.ranks,
                topic=settings.kv_events_topic,
            )
        if not endpoints:
            raise ConfigError(
                f"the engine at {self._url} names no KV event endpoint: start it with KV events on "
                f"({how_to_publish()}) or give --kv-events-endpoint; "
                f"or --no-kv-events; kvmesh doctor --engine-url {self._url} tells more"
            )
        refuse_collisions(endpoints)
        return endpoints

    def _worker(self, rank: int, *, alone: bool) -> WorkerId:
        return WorkerId(self._name if alone else f"{self._name}-dp{rank}")

    def _add_rank(self, driver: AioDriver, rank: int, facts: EngineFacts, *, alone: bool) -> None:
        settings = self._settings
        role = facts.role if settings.role == "auto" else settings.role
        port = settings.connector.bootstrap_port or facts.bootstrap_port
        named = connectors().get(settings.connector.kv_connector)
        way = named or connector_of(facts.kind, port)
        labels, taints = role_marks(role, whole=way.whole)
        options = PublisherOptions(
            worker=self._worker(rank, alone=alone),
            bucket=settings.bucket,
            epoch=time.time_ns() // 1_000_000,
            url=self._url,
            models=facts.models,
            adapters=facts.adapters,
            weights=facts.weights,
            block_size=settings.kv_cache_block_size or facts.block_size or None,
            drops=settings.eagle_block_drop,
            namespace=settings.nats.namespace,
            dp_rank=None if alone else rank,
            events=settings.kv_events,
            secret=mesh_secret(settings.hash_secret_file, settings.nats.nats_url),
            labels=(*parse_words(settings.label, "--label"), *labels),
            taints=(*parse_words(settings.taint, "--taint"), *taints),
            bootstrap_port=port if f"{role}-port" in way.needs else 0,
            connector=named.name if named else "",
            health_path=facts.health_path,
            engine=facts.kind,
            log_batches=settings.log.log_level == "debug",
            version=own_version(),
            incarnation=secrets.randbits(64) or 1,
        )
        publisher = Publisher(options, name=f"publisher-{rank}")
        driver.add(publisher)
        self._ranks.append((rank, publisher))

    def _follow(
        self, driver: AioDriver, endpoint: EventEndpoint, publisher: Publisher
    ) -> EventSubscription:
        feed = EngineFeed(driver, publisher.name, replays=bool(endpoint.replay))
        source = EventSubscription(
            SubscriptionOptions(
                endpoint=endpoint.endpoint,
                replay_endpoint=endpoint.replay or None,
                topic=self._settings.kv_events_topic or endpoint.topic,
                bind=self._settings.kv_events_bind,
            ),
            feed,
        )
        source.start()
        self._sources[publisher.name] = source
        self._checkpoints[publisher.name].attach(feed, source)
        return source

    async def _control(
        self, plane: EventPlane, driver: AioDriver, publisher: Publisher, worker: WorkerId
    ) -> Control:
        """Answer the commands to one worker from now on."""

        async def pass_on(command: Message) -> bool:
            return driver.post(publisher.name, command)

        async def status(command: Status) -> PublisherStatistics:
            del command
            return publisher.statistics()

        async def dump(command: Dump) -> bool:
            self._log.info("dump asked for", reason=command.reason)
            epoch = publisher.heartbeat().epoch
            return driver.post(publisher.name, Resync(worker, epoch, NOTHING_FITS))

        async def reread(command: Reread) -> bool:
            source = self._sources.get(publisher.name)
            if command.worker != worker or source is None:
                return False
            self._log.warning("reading the engine's history again", worker=worker)
            source.begin_again()
            return True

        subject = self._subjects.control(worker)
        checkpoints = self._checkpoints[publisher.name] = Checkpoints(worker, publisher)
        handlers: dict[type[Message], Handler] = {
            Resync: pass_on,
            WriteFormat: pass_on,
            PromptServed: pass_on,
            CacheEmptied: pass_on,
            Drain: pass_on,
            Reread: reread,
            Dump: dump,
            Status: status,
            **checkpoints.handlers(),
        }
        return await plane.control((subject,), handlers)

    def _load_feed(self, driver: AioDriver, facts: EngineFacts) -> LoadFeed:
        names = {rank: publisher.name for rank, publisher in self._ranks}

        def report(rank: int, load: WorkerLoad) -> None:
            if rank in names:
                driver.post(names[rank], EngineLoad(load))

        return LoadFeed(self._url, facts, report)

    def _report(self, driver: AioDriver, message: EngineAnswers | EngineServes) -> None:
        renewed = False
        if isinstance(message, EngineServes):
            before, self._weights = self._weights, message.weights
            self.models, renewed = message.models, before not in {"", message.weights}
        else:
            self._answering = message.answering
        for worker, (_, publisher) in zip(self.workers(), self._ranks, strict=True):
            driver.post(publisher.name, message)
            if renewed:
                driver.post(publisher.name, CacheEmptied(worker))


def command(settings: WorkerSettings) -> None:
    """Run the sidecar that puts one engine's KV events and load on the mesh."""
    configure_logging(settings.log.log_level, settings.log.log_format, role="worker")
    sidecar = Sidecar(settings)
    run(SidecarPages(settings.http, sidecar).serve)
