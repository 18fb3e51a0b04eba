"""`kvmesh router`: one replica of one bucket, in the mesh or alone."""

import asyncio
import contextlib
import random
import time
from functools import partial
from sys import maxsize
from typing import Final

import msgspec

from kvmesh.actors.router import Router
from kvmesh.app.front.front import Routes, upstream_pool, url_guard
from kvmesh.app.front.ports import Ports, open_ports
from kvmesh.app.front.tracing import exporting, tracer_for
from kvmesh.app.front.viewers import viewers_of
from kvmesh.app.members.engine_signs import EngineSigns
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.members.prober import Probe
from kvmesh.app.members.warning_lines import UrlRefusals
from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.app.process.build import own_build
from kvmesh.app.process.memory import index_bound, memory_limit
from kvmesh.app.process.place import own_place
from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.app.process.running_mesh import mesh_secret, own_secret
from kvmesh.app.prompts.isolation import isolation_of
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.app.prompts.wiring import check_of, forward_options, reader_of, split_options
from kvmesh.app.router.admin import RouterAdmin
from kvmesh.app.router.auto_tuner import running
from kvmesh.app.router.door import Door, HttpDoor, Serving
from kvmesh.app.router.mesh_choice import (
    LOCAL_NATS,
    RouterParts,
    find_mesh,
    find_pool,
    is_alone,
    registered_workers,
)
from kvmesh.app.router.program_part import ProgramPart
from kvmesh.app.router.replicas import replica_name, run_replicas
from kvmesh.app.router.router_options import (
    router_options,
    session_options,
    shadow_policies,
)
from kvmesh.app.router.running_changes import RunningChanges
from kvmesh.app.router.usage_part import UsagePart
from kvmesh.app.serve.admission import AdmissionGate
from kvmesh.app.serve.alternatives import alternatives_of
from kvmesh.app.serve.formula_watch import FormulaWatch
from kvmesh.app.serve.prefill import Splits
from kvmesh.app.serve.response_holders import ResponseHolders
from kvmesh.app.serve.routing_context import RoutingContext, RoutingCounters
from kvmesh.app.serve.routing_lines import RoutingSummary
from kvmesh.app.serve.stream_sharing import StreamSharing
from kvmesh.app.views.dashboard_page import ViewPages
from kvmesh.app.views.front_figures import POOL, URLS, span_figures
from kvmesh.app.views.mesh_figures import APPROX, HEARD
from kvmesh.app.views.process_figures import BUILD, INTERNAL_ERRORS
from kvmesh.app.views.request_figures import FORMULAS
from kvmesh.app.views.worker_figures import WORKER_CARE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import secret_mark
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.prefix_texts import PrefixTexts
from kvmesh.core.members.left_out import LeftOutByAll
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.retry_budget import RetryBudget
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import Sessions
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import keep_running, to_next
from kvmesh.transport.http.forward.resume import StreamKeep

HOUSEKEEPING_S = 1.0
SERVES: Final = {"router": "router serves", "picker": "picker serves"}


class RouterServer:
    """One replica of a bucket with everything it needs; `serve` runs it. Requests come by `door`,
    by HTTP unless another is given.
    """

    def __init__(self, settings: RouterSettings, door: Door | None = None) -> None:
        self.settings = settings
        self._door = HttpDoor(settings) if door is None else door
        self.router_id = replica_name(settings.router_id)
        cost = settings.cost
        self.routed = new_approx(thinned=True)
        self.hints = new_approx(graded=True)
        self.index = KvIndex(max_blocks=index_bound(memory_limit()))
        options = msgspec.structs.replace(router_options(settings), replica=self.router_id)
        self._watch = FormulaWatch(options.formulas.own())
        self.scheduler = Scheduler(
            options,
            random.Random(settings.seed or None),  # noqa: S311 - a choice, no secret
            membership=Membership(),
            sequences=new_sequences(block_size=options.block_size),
            index=self.index if settings.kv_events else None,
            routed=self.routed,
        )
        self.scheduler.listen(self.hints)
        own_urls = [one.url for one in parse_workers(settings.worker, empty=True)]
        self._guard = guard = url_guard(settings.upstream, own_urls, settings.nats.nats_url)
        self.scheduler.workers.guard, self._registered = guard, registered_workers(settings, guard)
        self._keeps_secret = cost.hash_secret_file is None and is_alone(settings)
        self._secret = (
            own_secret()
            if self._keeps_secret
            else mesh_secret(cost.hash_secret_file, settings.nats.nats_url or LOCAL_NATS)
        )
        if settings.session.session_affinity != "off":
            self.scheduler.sessions = Sessions(session_options(settings.session))
        self._programs = ProgramPart(settings, self.scheduler)
        self.router = Router(
            self.scheduler, cost.kv_cache_block_size, secret_mark=secret_mark(self._secret)
        )
        self._usage = UsagePart(settings, self.router, self.router_id)
        self.router.progress.hang_s = settings.failure.hang_s
        self._viewers = viewers_of(settings, settings.admission.tenant_header)
        self._shadows = shadow_policies(settings, options)
        self._pool = find_pool(settings)
        self.mesh = self._mesh()
        workers = self.scheduler.workers
        self._care = FailureCare(
            "worker",
            workers.membership,
            self._find_probe,
            settings.failure.wait_for_worker_s,
            time.monotonic,
            workers.settle_prices,
        )

    def _find_probe(self, worker: str) -> Probe | None:
        beat = self.router.heartbeats.get(WorkerId(worker))
        return Probe.of(beat.worker, beat.url, beat.health_path) if beat is not None else None

    def _mesh(self) -> MeshPart:
        settings = self.settings
        pool = partial(upstream_pool, settings.upstream, self._guard)
        parts = RouterParts(
            router_id=self.router_id,
            router=self.router,
            index=self.index,
            guard=self._guard,
            secret=self._secret,
            role=self._door.role,
            pool=self._pool,
            registered=self._registered,
        )
        return find_mesh(settings, parts, pool)

    def _context(self) -> RoutingContext:
        settings, logs = self.settings, self.settings.log
        debug = logs.log_level == "debug"
        decisions = DecisionLog(
            capacity=settings.decision.decision_log,
            whole_per_s=maxsize if debug else settings.decision.explain_per_s,
            shadows=self._shadows,
        )
        decisions.left_out = LeftOutByAll(self.scheduler.workers.membership).find
        routing = Dispatch(
            self.scheduler,
            decisions,
            time.perf_counter,
            self.mesh.distrust,
            follows_events=settings.kv_events,
            governor=self._programs.governor,
        )
        routing.wanting, routing.on_served = self.router.wanting, self.mesh.served
        self.router.resized.append(routing.resize)
        streams = StreamKeep(settings.upstream.keep_stream_bytes)
        return RoutingContext(
            router=self.router,
            router_id=self.router_id,
            bucket=settings.bucket,
            counters=RoutingCounters(self._care.failures, routing.tokens, streams),
            named=self._named(streams),
            clock=time.monotonic,
            holders=ResponseHolders(self.router.ids),
            log=get_logger().bind(),  # bound once: a proxy binds anew at each use, 6 us
            fixed_headers=(
                (b"x-kvmesh-router", self.router_id.encode()),
                (b"x-kvmesh-bucket", settings.bucket.encode()),
            ),
            open_requests=set(),
            outbox=self.mesh.outbox,
            released=self.mesh.released,
            emptied=self.mesh.emptied,
            scheduler=self.scheduler,
            workers=self.scheduler.workers,
            routing=routing,
            decisions=decisions,
            gate=AdmissionGate(
                routing,
                settings.admission.expanded(sheds=self._door.role == "picker"),
                time.monotonic,
                self.mesh.post,
                settings.program.expanded(),
            ),
            tracer=tracer_for(logs.otlp_endpoint, self._door.role, logs.otlp_sample),
            budget=RetryBudget(settings.failure.retry_budget),
            patience=self._care.patience,
            hangs=self._care.hangs,
            streams=self._care.streams,
            ask_suspects=self._care.wake,
            debug=debug,
            alternatives=alternatives_of(
                self._door.alternatives, self.scheduler, self.router.heartbeats.get, settings.seed
            ),
            texts=PrefixTexts() if settings.decision.show_prefix_text else None,
            scaling=settings.scaling,
        )

    def _named(self, streams: StreamKeep) -> StreamSharing | None:
        """Return what tells siblings of streams that clients named; a picker serves none."""
        if self._door.role == "picker" or not streams.most:
            return None
        header = self.settings.admission.tenant_header
        sharing = StreamSharing(streams.named, self.router_id, header)
        sharing.publish = self.mesh.share_streams(sharing.hear)
        return sharing

    def _why_not(self) -> str:
        """Return why no request should come; "" when they may."""
        if (pool := self._pool) is None or pool.synced.is_set():
            return self.mesh.why_not()
        return f"InferencePool {pool.name}: {pool.why_not()}"

    async def serve(self, stop: Stop) -> None:
        """Serve until `stop`, then drain: no new requests, open streams finish."""
        settings, door, log = self.settings, self._door, get_logger()
        async with contextlib.AsyncExitStack() as stack:
            pool = upstream_pool(settings.upstream, self._guard)
            stack.push_async_callback(pool.close)
            context = self._programs.keep(self._context(), self.mesh.replicas, pool)
            exporting(context.tracer, stack)
            check = check_of(settings, pool, context.find_holder)
            check.holds = lambda: bool(context.gate.waiting)
            stack.push_async_callback(check.close)
            reader = self._reader(context, check)
            options = forward_options(settings, context.counters.streams)
            splits = Splits(split_options(settings), pool)
            routes = Routes()
            serving = Serving(
                context,
                reader,
                options,
                splits,
                self._viewers,
                why_not=self._why_not,
                registered=self._registered,
                priority_of=self._pool.priority_of if self._pool is not None else None,
            )
            door.mount(serving, routes)
            ports = await open_ports(settings.http, routes, stack, settings.admission.tenant_header)
            changes = RunningChanges(context, self.mesh, settings)
            admin = self._admin(context, check, changes, ports)
            await admin.share(stack)
            errors = INTERNAL_ERRORS.of(lambda: stop.errors)
            admin.sources.add(
                errors, BUILD.of(own_build), *door.figures(), *span_figures(context.tracer)
            )
            watch = self._programs.mount(context, self._viewers, admin, ports.all())
            traffic = self._usage.mount(context, self._viewers, admin, ports.all())
            view = changes.view(admin, traffic)
            view.role = door.role
            view.programs = lambda: watch.seen.rows
            pages = ViewPages(view, self._viewers)
            ports.mount(pages)
            stack.push_async_callback(door.close)
            url = await door.open()
            stack.push_async_callback(self.mesh.stop)
            await first_of(
                *(
                    stop.wait(),
                    self._join(url),
                    *self._care.running(pool, pool, EngineSigns(self.router, pool, context.clock)),
                ),
                keep_running("housekeeping", partial(self._housekeeping, context, changes)),
                keep_running("dashboards", pages.live.run),
                keep_running("sleeping engines", partial(context.asleep.run, self.router, pool)),
                keep_running("programs seen", watch.run),
                keep_running("traffic", traffic.run),
                *self._programs.running(),
                keep_running("routing summary", RoutingSummary(context, self.index).run),
                *running(changes.tuner),
                *(() if self._pool is None else (keep_running("inference pool", self._pool.run),)),
            )
            self.mesh.draining = True
            await door.give_notice()
            pages.live.close()
            context.gate.close_in(settings.http.drain_s / 2)
            log.info("draining", open_requests=door.open_requests())
            await door.drain()
            self._usage.close()

    async def _join(self, url: str) -> None:
        """Be part of the mesh, which may have to wait for NATS, until that fails."""
        await self.mesh.start(url)
        get_logger().info(
            SERVES[self._door.role], url=url, router=self.router_id, bucket=self.settings.bucket
        )
        await self.mesh.failed()

    def _reader(self, context: RoutingContext, check: TokenCheck) -> Reader:
        seconds, adapters = context.routing.phases.tokenize, self.router.adapters
        reader = reader_of(
            self.settings, self.router_id, check, adapters, seconds, secret=self._secret
        )
        reader.keeps_secret = self._keeps_secret
        reader.uses_caches = context.checks
        reader.names_turns = lambda: context.gate.follows
        reader.follow(context.scheduler.overlaps.has_lookahead)
        self.router.resized.append(reader.resize)
        return reader

    def _admin(
        self,
        context: RoutingContext,
        check: TokenCheck,
        changes: RunningChanges,
        ports: Ports,
    ) -> RouterAdmin:
        """Mount the probes on all ports, the admin paths on theirs."""
        admin = RouterAdmin(context, self.mesh, check, changes.view_policy)
        admin.viewers = self._viewers
        admin.why_not = self._why_not
        if isolation := isolation_of(self.settings.tenant, self.settings.admission.tenant_header):
            admin.parts["tenant_secret"] = lambda: isolation.salts.mark
        refusals = UrlRefusals(self._guard)
        admin.sources.add(APPROX.of(self.routed.statistics))
        admin.sources.add(HEARD.of(self.hints.statistics))
        admin.show(URLS.of(lambda: refusals), refusals.warnings)
        admin.show(FORMULAS.of_each(self._watch.statistics), self._watch.warnings)
        admin.show(WORKER_CARE.of(self._care.statistics), self._care.warnings)
        admin.in_rows = self._care.warnings
        if (watched := self._pool) is not None:
            admin.show(POOL.of(watched.statistics), watched.warnings)
            admin.parts["inference_pool"] = watched.describe
        for door in ports.all():
            admin.mount_probes(door)
        admin.mount(ports.admin)
        changes.mount(admin, ports)
        return admin

    async def _housekeeping(self, context: RoutingContext, changes: RunningChanges) -> None:
        """Renew the bookings of open requests, release those nobody renews, once a second.

        Workers that are gone are forgotten, changes that siblings were told are taken.
        """
        sequences = self.scheduler.sequences
        while True:
            try:
                await asyncio.sleep(to_next(HOUSEKEEPING_S))
            except asyncio.CancelledError:
                await changes.close()
                raise
            now = context.clock()
            sequences.renew(context.open_requests, now)
            sequences.expire(now)
            self.scheduler.grow_unseen(now)
            context.sockets.look(context.workers.membership, self.settings.http.drain_s, now)
            changes.adopt()
            self._watch.check(now)
            self._programs.check(context)
            predictions, accesses = context.routing.predictions, context.routing.accesses
            for worker in {*predictions.workers(), *accesses.reports}:
                if context.router.heartbeats.get(worker) is None:
                    predictions.forget(worker)
                    accesses.forget(worker)


def command(settings: RouterSettings) -> None:
    """Run one router replica of a bucket, or a router alone over the engines of --worker."""
    configure_logging(settings.log.log_level, settings.log.log_format, role="router")
    if settings.processes > 1 and own_place() is None:
        run(partial(run_replicas, settings))
        return
    server = RouterServer(settings)
    get_logger().info("router starts", router=server.router_id, bucket=settings.bucket)
    run(server.serve)
