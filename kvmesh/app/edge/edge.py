"""One edge process of a router: parses, tokenises, forwards and streams; the index process decides.

All edges share the port. What is not an inference request is passed on to the index process, as is
what may be prefilled on one worker and decoded on another: one process sees both through.
"""

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from typing import Final

from kvmesh.app.edge.index_link import IndexLink
from kvmesh.app.edge.messages import EdgeReport
from kvmesh.app.edge.remote_request import RemoteRequest
from kvmesh.app.engines.worker_option import parse_workers
from kvmesh.app.front.front import FrontDoor, Routes, answer_json, upstream_pool, url_guard
from kvmesh.app.front.tracing import Tracer, tracer_for
from kvmesh.app.front.viewers import Viewers, viewers_of
from kvmesh.app.process.part import RouterPart
from kvmesh.app.process.running import Stop, first_of
from kvmesh.app.prompts.reading import Reader, within_patience
from kvmesh.app.prompts.request_wishes import read_timeout_s
from kvmesh.app.prompts.wiring import check_of, forward_options, reader_of
from kvmesh.app.serve.gateway import SPLIT_PATHS, UNSALTED_PATHS
from kvmesh.core.admission.access import ROLES_HEADER
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.observe import get_logger
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.forward.forwarding import DEFAULT_OPTIONS, Forward
from kvmesh.transport.http.forward.plan import ForwardOptions, ForwardPlan, Outcome, Target
from kvmesh.transport.http.openai import ENDPOINTS, find_endpoint
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

_AWAY: Final = Problem(503, "the router's index process is away", "starting", retry_after_s=1)


class OnePlace:
    """The plan of a cold path: the index process or nobody."""

    __slots__ = ("_target",)

    def __init__(self, origin: str) -> None:
        self._target: Target | None = Target(origin)

    def next_target(self) -> Target | None:
        """Return the one target, once."""
        target, self._target = self._target, None
        return target

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Try nobody else."""
        del failure
        return False

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Add nothing."""
        del status, headers
        return ()

    def on_tokens(self, tokens: int) -> None:
        """Count nothing."""

    def on_finish(self, outcome: Outcome) -> None:
        """Count nothing."""


class EdgeGateway:
    """Serves every path of one edge."""

    def __init__(
        self,
        link: IndexLink,
        reader: Reader,
        pool: UpstreamPool,
        options: ForwardOptions,
        fixed_headers: Headers,
        tracer: Tracer | None,
    ) -> None:
        self.viewers = Viewers("")
        self._link = link
        self._tracer = tracer
        self._reader = reader
        self._pool = pool
        self._options = options
        self._fixed_headers = fixed_headers

    def mount(self, routes: Routes) -> None:
        """Serve all paths."""
        routes.add("GET", "/health", lambda exchange: answer_json(exchange, {"status": "alive"}))
        for path, endpoint in ENDPOINTS.items():
            if endpoint.kind != "models":
                routes.add("POST", path, self._infer)
        routes.add_prefix("/", self._pass_on)

    def _infer(self, exchange: Exchange) -> None:
        request = exchange.request
        if self.viewers.apart and request.path in UNSALTED_PATHS:
            self._pass_on(exchange)
            return
        if self._link.splits and self._link.origin and request.path in SPLIT_PATHS:
            options = within_patience(self._options, read_timeout_s(request))
            self._pass_to_index(exchange, options)
            return
        endpoint = find_endpoint(request.method, request.path, passthrough=False)
        self._reader.read(exchange, endpoint, self._forward)

    def _forward(self, exchange: Exchange, request: RouteRequest) -> None:
        options = within_patience(self._options, request.timeout_s)
        forwarding = Forward(exchange, self._pool, options)
        plan: ForwardPlan = RemoteRequest(
            self._link, request, forwarding, self._pool.wheel, self._fixed_headers
        )
        if self._tracer is not None:
            plan = self._tracer.watch(exchange, plan)
        if exchange.request.header(ROLES_HEADER) is not None:
            plan = self.viewers.veil(exchange.request, plan)
        forwarding.begin(plan, stream=request.streams)

    def _pass_on(self, exchange: Exchange) -> None:
        if self._link.origin:
            self._pass_to_index(exchange, DEFAULT_OPTIONS)
        else:
            exchange.fail(_AWAY)

    def _pass_to_index(self, exchange: Exchange, options: ForwardOptions) -> None:
        Forward(exchange, self._pool, options).begin(OnePlace(self._link.origin))


class EdgeServer:
    """One edge with everything it needs."""

    def __init__(self, settings: RouterSettings, part: RouterPart) -> None:
        self._settings = settings
        self._part = part

    async def serve(self, stop: Stop) -> None:
        """Serve until `stop`, then drain: no new requests, open streams finish."""
        settings, part, log = self._settings, self._part, get_logger()
        async with contextlib.AsyncExitStack() as stack:
            # The index process judges what workers say; its own paths are on this machine.
            static = [one.url for one in parse_workers(settings.worker, empty=True)]
            guard = url_guard(settings.upstream, ["http://127.0.0.1", *static])
            pool = upstream_pool(settings.upstream, guard)
            stack.push_async_callback(pool.close)
            link = IndexLink(Path(part.socket), part.number)
            check = check_of(settings, pool, link.find_holder)
            stack.push_async_callback(check.close)
            reader = reader_of(
                settings, f"{part.router_id}-{part.number}", check, link.fleet.adapters
            )
            link.resized = reader.resize
            fixed_headers = (
                (b"x-kvmesh-router", part.router_id.encode()),
                (b"x-kvmesh-bucket", settings.bucket.encode()),
            )
            options = forward_options(settings)
            routes = Routes()
            tracer = tracer_for(settings.log.otlp_endpoint, "router")
            if tracer is not None:
                stack.push_async_callback(asyncio.to_thread, tracer.close)
            gateway = EdgeGateway(link, reader, pool, options, fixed_headers, tracer)
            gateway.viewers = viewers_of(settings, settings.admission.tenant_header)
            gateway.mount(routes)
            http = dataclasses.replace(settings.http, http_port=part.port)
            front = FrontDoor(
                http,
                routes,
                tenant_header=settings.admission.tenant_header,
                processes=settings.http_processes,
            )
            await front.open(reuse_port=True)
            stack.push_async_callback(front.server.close)
            log.info("edge serves", url=part.url, edge=part.number)

            def report() -> EdgeReport:
                return EdgeReport(front.server.statistics(), link.unguided, check.warnings())

            await first_of(stop.wait(), link.run(report))
            log.info("draining", open_requests=front.server.statistics().open_requests)
            await front.drain()
            await link.close()
