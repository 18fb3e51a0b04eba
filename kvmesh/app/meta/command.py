"""`kvmesh meta-router`: the front door over all buckets and their replicas."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.fleet_pages import FleetPages
from kvmesh.app.front.front import (
    NOT_FOUND,
    FrontDoor,
    Routes,
    answer_json,
    upstream_pool,
    url_guard,
)
from kvmesh.app.front.models_page import ModelsPage
from kvmesh.app.front.ports import open_ports
from kvmesh.app.front.tracing import exporting, tracer_for
from kvmesh.app.front.viewers import viewers_of
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.members.prober import Probe
from kvmesh.app.members.warning_lines import UrlRefusals
from kvmesh.app.mesh.meta_mesh import MetaMesh
from kvmesh.app.mesh.static_replicas import StaticReplicas, parse_replicas
from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.meta.bucket_policy import bucket_policy
from kvmesh.app.meta.bucket_reader import BucketReader, Digest, Read, is_long
from kvmesh.app.meta.bucket_sockets import BucketSockets
from kvmesh.app.meta.operator_pages import OperatorPages
from kvmesh.app.meta.pages import UNAVAILABLE, MetaPages
from kvmesh.app.meta.programs import MetaPrograms
from kvmesh.app.meta.session_names import SessionNames
from kvmesh.app.meta.site_part import SitePart, check_residency, parse_doors
from kvmesh.app.meta.usage import MetaUsage
from kvmesh.app.meta.view import TENANT_HEADER, MetaView
from kvmesh.app.process.build import own_build
from kvmesh.app.process.internal_errors import InternalErrors
from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.app.prompts.isolation import isolation_of
from kvmesh.app.prompts.reading_parts import by_path
from kvmesh.app.prompts.reading_threads import ReadingThreads
from kvmesh.app.serve.formula_watch import FormulaWatch
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.app.serve.response_holders import homes_of
from kvmesh.app.views.dashboard_page import ViewPages
from kvmesh.app.views.figure import Labels
from kvmesh.app.views.front_figures import (
    META,
    META_ENDS,
    META_HOMES,
    META_REPLICAS,
    URLS,
    MetaReplica,
    span_figures,
)
from kvmesh.app.views.mesh_figures import HEARING
from kvmesh.app.views.metrics_page import MetricsPage
from kvmesh.app.views.process_figures import BUILD, INTERNAL_ERRORS
from kvmesh.app.views.request_figures import FORMULAS, STREAMS
from kvmesh.app.views.worker_figures import REPLICA_CARE
from kvmesh.bounds import listed
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.rules import BucketRequest, parse_rule
from kvmesh.core.members.outcomes import UNKNOWN
from kvmesh.errors import KvMeshError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.member_name import router_name
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.tasks import keep_running
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import NO_HOLD, ForwardOptions
from kvmesh.transport.http.forward.resume import STREAMS_PATH, StreamKeep
from kvmesh.transport.http.openai import ENDPOINTS, OTHERS, PASSTHROUGH, find_endpoint, may_repeat
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

Then = Callable[[Exchange, Digest], None]

TEMPORARY_REDIRECT = 307
MOST_ASKED: Final = 256
RETRY_STATUSES: Final = frozenset({UNAVAILABLE})
"""What a replica says that cannot decide now; all else its workers say, and it has tried them."""


class MetaServer:
    """One meta-router process."""

    def __init__(self, settings: MetaRouterSettings) -> None:
        self.settings = settings
        rules = [parse_rule(text) for text in settings.rule]
        replicas = parse_replicas(settings.replica)
        doors = parse_doors(settings)
        own_urls = [*(url for _, url in replicas), *doors.values()]
        self._guard = url_guard(settings.upstream, own_urls, settings.nats.nats_url)
        self._refusals = UrlRefusals(self._guard)
        homes = HomeOptions(shared=not settings.replica)
        policy, own = bucket_policy(settings)
        self._watch = FormulaWatch(own, instead="round-robin")
        self.meta = MetaRouter(
            settings.nats.namespace, rules, policy, guard=self._guard, homes=homes
        )
        self._reader = BucketReader(
            self.meta.table,
            SessionNames(TENANT_HEADER),
            rules=bool(rules),
            sites=bool(doors),
            isolation=isolation_of(settings.tenant, TENANT_HEADER),
        )
        self._threads = ReadingThreads()
        self._viewers = viewers_of(settings, TENANT_HEADER)
        self._pool: UpstreamPool | None = None
        self._tracer = tracer_for(
            settings.log.otlp_endpoint, "meta-router", settings.log.otlp_sample
        )
        # That a replica dies is no request's doing.
        self._options = ForwardOptions(
            max_retries=settings.upstream.max_retries,
            max_deaths=settings.upstream.max_retries,
            blameless=True,
            adopts_id=True,
            retry_statuses=RETRY_STATUSES,
        )
        self._once = msgspec.structs.replace(self._options, max_deaths=0)
        # One replica after the other is asked who knows a stream, or what has an id.
        self._of_kept = msgspec.structs.replace(
            self._once, retry_statuses=RETRY_STATUSES | {NOT_FOUND}, max_retries=MOST_ASKED
        )
        self._streams = StreamKeep(settings.upstream.keep_stream_bytes)
        keep = self._streams if self._streams.most else None
        self._by_path = by_path(msgspec.structs.replace(self._options, keep=keep))
        self._care = FailureCare(
            "replica",
            self.meta.table.membership,
            self._find_probe,
            settings.wait_for_replica_s,
            time.monotonic,
        )
        self._ends = ends = RequestEnds()
        self._sockets = BucketSockets(self.meta, self._reader, self._options, self._care, ends)
        self._static = [
            (self.meta.add_static(bucket, url, time.monotonic()), url) for bucket, url in replicas
        ]
        self._sites: SitePart | None = None
        if settings.sites.site:
            self._sites = SitePart(settings, doors, self.meta, router_name(""))
        self._feed = self._replica_feed()
        self._pages = MetaPages(
            self.meta, self._feed, self._care, self._refusals, self._watch, self._sites
        )

    def _find_probe(self, replica: str) -> Probe | None:
        """Ask a replica that failed requests whether it is ready, one that only lets them wait
        whether it is there: without workers it still answers.
        """
        url, health = self.meta.url(replica), self.meta.table.membership.health
        path = "/ready" if health.is_left_out(replica, time.monotonic()) else "/health"
        return Probe(replica, url, path) if url else None

    def _replica_feed(self) -> StaticReplicas | MetaMesh:
        """Return where replicas come from: the command line, or their heartbeats."""
        if self.settings.replica:
            return StaticReplicas(
                self.meta, self._static, lambda: upstream_pool(self.settings.upstream, self._guard)
            )
        return MetaMesh(
            self.settings, self.meta, None if self._sites is None else self._sites.reporter
        )

    async def serve(self, stop: Stop) -> None:
        """Serve until `stop`, then let open streams finish."""
        log = get_logger()
        async with contextlib.AsyncExitStack() as stack:
            self._pool = upstream_pool(self.settings.upstream, self._guard, also=(NO_HOLD,))
            stack.push_async_callback(self._pool.close)
            exporting(self._tracer, stack)
            routes = Routes()
            ports = await open_ports(self.settings.http, routes, stack, TENANT_HEADER)
            for door in ports.all():
                door.add("GET", "/health", lambda one: answer_json(one, {"status": "alive"}))
                door.add("GET", "/ready", self._pages.ready)
            self._pages.mount(ports.admin, self._viewers)
            ready = self._ready_replicas
            models = ModelsPage(self.meta.table.models, lambda: ready().values(), self._pool)
            routes.add("GET", "/v1/models", models.serve)
            routes.add("POST", "/v1/route", self._explain)
            routes.add("POST", "/v1/bucket", self._which)
            self._mount(routes, self._pool)
            OperatorPages(self.meta, self._pool, self.settings, self._viewers).mount(routes, ports)
            asking = upstream_pool(self.settings.upstream, self._guard)
            stack.push_async_callback(asking.close)
            view = MetaView(self.meta, asking, "meta-router", self._pages)
            ports.mount(pages := ViewPages(view, self._viewers))
            for door in ports.all():
                MetaPrograms(view, self._viewers).mount(door)
                MetaUsage(view, self._viewers).mount(door)
            front = FrontDoor(
                self.settings.http,
                routes,
                tenant_header=TENANT_HEADER,
                passes_keys=self.settings.upstream.upstream_key_file is None,
            )
            self._metrics(front, stop.errors).mount(ports.admin)
            stack.push_async_callback(self._feed.stop)
            url = await front.open()
            stack.push_async_callback(front.server.close)
            await first_of(
                *(stop.wait(), self._follow(url), keep_running("dashboards", pages.live.run)),
                *self._care.running(asking, self._pool),
                keep_running("formulas", self._watch.run),
                *(() if self._sites is None else (self._sites.running(asking),)),
            )
            pages.live.close()
            log.info("draining", open_requests=front.server.statistics().open_requests)
            await front.drain()

    def _mount(self, routes: Routes, pool: UpstreamPool) -> None:
        """Serve what replicas serve, but for what is answered here."""
        for path, endpoint in (*ENDPOINTS.items(), *OTHERS.items()):
            if endpoint.kind != "models":
                for method in endpoint.methods:
                    routes.add(method, path, self._forward)
        routes.add_prefix("/v1/", self._forward)
        FleetPages(pool, self._ready_replicas, self._viewers).mount(routes, self._forward)

    def _ready_replicas(self) -> dict[str, str]:
        """Return the URL of one replica of each bucket: each knows all workers of its own."""
        table, now = self.meta.table, time.monotonic()
        found = ((bucket, table.ready(bucket, now)) for bucket in table.buckets())
        return {bucket: one.url for bucket, ready in found for one in ready[:1]}

    def _metrics(self, front: FrontDoor, errors: InternalErrors) -> MetricsPage:
        return MetricsPage(
            META.of(front.server.statistics),
            META_ENDS.of(lambda: self._ends),
            META_HOMES.of(self.meta.statistics),
            META_REPLICAS.of_each(self._replicas),
            FORMULAS.of_each(self._watch.statistics),
            HEARING.of(lambda: self.meta.link_health),
            URLS.of(lambda: self._refusals),
            REPLICA_CARE.of(self._care.statistics),
            INTERNAL_ERRORS.of(lambda: errors),
            BUILD.of(own_build),
            *self._feed.figures(),
            *span_figures(self._tracer),
            STREAMS.of(lambda: self._streams),
            *(() if self._sites is None else self._sites.figures()),
            elsewhere=self._request_figures,
        )

    def _request_figures(self) -> str:
        """Return whose metrics tell of requests, which a meta-router only passes on."""
        urls = [one.url for one in self.meta.table.replicas()]
        return f"a meta-router has none of these, scrape its routers: {listed(urls)}"

    def _replicas(self) -> dict[Labels, MetaReplica]:
        table, now = self.meta.table, time.monotonic()
        return {
            (one.bucket, one.name): MetaReplica(
                table.membership.why_not(one.name, now) is None, one.active_requests
            )
            for one in table.replicas()
        }

    async def _follow(self, url: str) -> None:
        """Hear of replicas until that fails."""
        await self._feed.start()
        get_logger().info("meta-router serves", url=url)
        await self._feed.failed()

    def _forward(self, exchange: Exchange) -> None:
        request = exchange.request
        assert self._pool is not None
        check_residency(request, self.settings.sites.site)
        endpoint = find_endpoint(request.method, request.path, passthrough=True)
        if endpoint is PASSTHROUGH and self._sockets.serve(exchange, self._pool, self._tracer):
            return
        if (scanned := self._reader.scan(request, endpoint)) is not None:
            self._send(exchange, scanned[0], stream=scanned[1])
            return
        self._read(exchange, partial(self._reader.digest, request, endpoint), self._forward_read)

    def _read(self, exchange: Exchange, read: Read, then: Then) -> None:
        """Call `then` with what `read` returns: at once, or of a long body from a later turn.

        Raises what `read` does of a short one.
        """
        if is_long(exchange.request):
            exchange.scope.start(self._read_in_thread(exchange, read, then))
        else:
            then(exchange, read(check=False))

    async def _read_in_thread(self, exchange: Exchange, read: Read, then: Then) -> None:
        try:
            then(exchange, await self._threads.run(exchange.request, partial(read, check=True)))
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))

    def _forward_read(self, exchange: Exchange, read: Digest) -> None:
        request, parsed = exchange.request, read.parsed
        if read.endpoint.prompt is None:
            wanted = self._reader.read_other(request, parsed.model or "")
        else:
            wanted = self._reader.read(request, read.endpoint, parsed, outline=read.outline)
        self._send(exchange, wanted, stream=bool(parsed.stream))

    def _explain(self, exchange: Exchange) -> None:
        """Let a replica of the request's bucket explain what it would decide."""
        check_residency(exchange.request, self.settings.sites.site)
        read = partial(self._reader.digest_question, exchange.request)
        self._read(exchange, read, self._explain_read)

    def _explain_read(self, exchange: Exchange, read: Digest) -> None:
        self._send(exchange, self._reader.read_question(exchange.request, read), stream=False)

    def _send(self, exchange: Exchange, request: BucketRequest, *, stream: bool) -> None:
        assert self._pool is not None
        if self.settings.redirects and exchange.request.header(b"x-kvmesh-redirect") is not None:
            self._redirect(exchange, request)
            return
        asked, options = exchange.request, self._once
        if asked.path.startswith(STREAMS_PATH) or homes_of(asked):
            options = self._of_kept
        elif may_repeat(asked):
            options = self._by_path.get(asked.path, self._options)
        if self._tracer is not None:
            self._tracer.begin(exchange)
        forwarding = Forward(exchange, self._pool, options)
        home = BucketPlan(self.meta, request, self._care, self._ends, forwarding)
        sites = self._sites
        plan = home if sites is None else sites.plan(asked, request, home, forwarding)
        forwarding.begin(plan, stream=stream)

    def _redirect(self, exchange: Exchange, request: BucketRequest) -> None:
        """Send the client itself to the replica: its answer then makes one hop less."""
        route = self.meta.table.route(request, now := time.monotonic())
        self.meta.note(route.replica.name, UNKNOWN, now)
        headers = (
            (b"location", route.replica.url.encode() + exchange.request.target),
            (b"cache-control", b"no-store"),
            (b"x-kvmesh-bucket", route.bucket.encode()),
        )
        exchange.respond(TEMPORARY_REDIRECT, b"", headers=headers)

    def _which(self, exchange: Exchange) -> None:
        """Answer what rules see of a request, and the bucket that they or the client name."""
        read = partial(self._reader.digest, exchange.request, None)
        self._read(exchange, read, self._which_read)

    def _which_read(self, exchange: Exchange, read: Digest) -> None:
        outline = self._reader.read(
            exchange.request, read.endpoint, read.parsed, check=True, outline=read.outline
        )
        answer_json(
            exchange,
            {
                "bucket": self.meta.table.named(outline) or None,
                "policy": self.settings.kv_cost or self.settings.bucket_policy,
                "model": outline.model,
                "prompt_chars": outline.prompt_chars,
                "family": outline.family(),
            },
        )


def command(settings: MetaRouterSettings) -> None:
    """Run the front door over all buckets and replicas."""
    configure_logging(settings.log.log_level, settings.log.log_format, role="meta-router")
    server = MetaServer(settings)
    run(server.serve)
