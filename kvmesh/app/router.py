"""`kvmesh router`: one replica of one bucket, in the mesh or alone."""

import asyncio
import contextlib
import os
import random
import socket
import time
from importlib import import_module
from typing import Annotated, Protocol, cast

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.admin import RouterAdmin
from kvmesh.app.admission import AdmissionGate
from kvmesh.app.admission_admin import AdmissionAdmin
from kvmesh.app.dashboard_page import ViewPages
from kvmesh.app.front import FrontDoor, Routes, upstream_pool
from kvmesh.app.gateway import Gateway
from kvmesh.app.intake import Intake
from kvmesh.app.process import Stop, first_of, run
from kvmesh.app.routed import RoutingContext, RoutingCounters
from kvmesh.app.router_view import RouterView
from kvmesh.app.static_workers import StaticWorkers
from kvmesh.app.worker_option import parse_workers
from kvmesh.core.approx import ApproxIndex
from kvmesh.core.decision import RouterOptions
from kvmesh.core.decision_log import DecisionLog
from kvmesh.core.events import WorkerId
from kvmesh.core.index import KvIndex
from kvmesh.core.membership import Membership
from kvmesh.core.predictions import Doubt, Predictions
from kvmesh.core.scheduler import Scheduler
from kvmesh.core.sequences import ActiveSequences
from kvmesh.observe import configure_logging, get_logger
from kvmesh.setting_types import Flat
from kvmesh.settings import RouterSettings
from kvmesh.tokenizer import TokenizerOptions, load_tokenizer
from kvmesh.transport.http.proxy import ForwardOptions

HOUSEKEEPING_S = 1.0


class Mesh(Protocol):
    """How a router learns of workers and caches: `RouterMesh` over NATS, or `StaticWorkers`."""

    draining: bool

    def why_not(self) -> str:
        """Return why no request should come; "" when they may."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what makes routing worse than it could be, one line each."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the state of this part, for /v1/status."""
        ...

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of this replica and its peers, own first."""
        ...

    def digests(self) -> tuple[int, int]:
        """Return how many digests of peers were compared, and how many differed."""
        ...

    def tell(self, message: Message) -> None:
        """Pass a booking on to the other replicas, if there are any."""
        ...

    def doubt(self, worker: WorkerId, doubt: Doubt) -> None:
        """Have what is known of the worker's cache sent anew, if it can be."""
        ...

    async def start(self, advertise_url: str) -> None:
        """Begin."""
        ...

    async def failed(self) -> None:
        """Wait until a part fails, and raise its error."""
        ...

    async def stop(self) -> None:
        """End; safe to call twice."""
        ...


class RouterServer:
    """One router replica with everything it needs; `serve` runs it."""

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings
        self.router_id = settings.router_id or f"{socket.gethostname()}-{os.getpid()}"
        cost = settings.cost
        self.index = KvIndex(max_blocks=cost.index_max_blocks)
        options = RouterOptions(
            mode=cost.router_mode,
            cost=cost.kv_cost,
            temperature=cost.router_temperature,
            overlap_score_weight=cost.kv_overlap_score_weight,
            block_size=cost.kv_cache_block_size,
            predict_ttl_s=cost.predict_ttl_s,
            approx_ttl_s=cost.approx_ttl_s,
        )
        self.scheduler = Scheduler(
            options,
            random.Random(settings.seed or None),  # noqa: S311 - a choice, no secret
            membership=Membership(),
            sequences=ActiveSequences(block_size=cost.kv_cache_block_size),
            index=self.index if settings.kv_events else None,
            routed=ApproxIndex(),
        )
        self.router = Router(self.scheduler, cost.kv_cache_block_size)
        self.mesh = self._mesh()

    def _mesh(self) -> Mesh:
        settings = self.settings
        if settings.worker or not settings.kv_events:
            workers = parse_workers(settings.worker)
            index = self.index if settings.kv_events else None
            return StaticWorkers(workers, self.router, settings.bucket, index)
        # Loaded by name: a router alone must run where NATS is not installed.
        mesh = import_module("kvmesh.app.mesh")
        return cast("Mesh", mesh.RouterMesh(settings, self.router_id, self.router, self.index))

    async def serve(self, stop: Stop) -> None:
        """Serve until `stop`, then drain: no new requests, open streams finish."""
        settings = self.settings
        log = get_logger()
        tokenizer = load_tokenizer(
            str(settings.tokenizer) if settings.tokenizer else None,
            options=TokenizerOptions(engine=settings.tokenizer_engine),
        )
        async with contextlib.AsyncExitStack() as stack:
            pool = upstream_pool(settings.upstream)
            stack.push_async_callback(pool.close)
            decisions = DecisionLog(
                settings.cost.kv_cache_block_size,
                capacity=settings.decision_log,
                whole_per_s=settings.explain_per_s,
            )
            context = RoutingContext(
                router=self.router,
                router_id=self.router_id,
                bucket=settings.bucket,
                counters=RoutingCounters(),
                clock=time.monotonic,
                log=log,
                fixed_headers=(
                    (b"x-kvmesh-router", self.router_id.encode()),
                    (b"x-kvmesh-bucket", settings.bucket.encode()),
                ),
                open_requests=set(),
                tell=self.mesh.tell,
                decisions=decisions,
                gate=AdmissionGate(
                    self.scheduler, settings.admission, time.monotonic, decisions.may_weigh_all
                ),
                predictions=Predictions(settings.cost.kv_cache_block_size),
                doubt=self.mesh.doubt,
            )
            intake = Intake(
                tokenizer,
                settings.cost.kv_cache_block_size,
                self.router_id,
                settings.vocab_size,
                tenant_header=settings.admission.tenant_header,
            )
            options = ForwardOptions(
                max_retries=settings.upstream.max_retries,
                deadline_s=settings.stream.request_timeout_s or None,
                comments_s=settings.stream.sse_comment_s or None,
            )
            gateway = Gateway(context, intake, pool, options)
            routes = Routes()
            routes.add("POST", "/v1/route", gateway.explain)
            routes.add_prefix("/v1/", gateway.serve)
            RouterAdmin(context, self.mesh).mount(routes)
            AdmissionAdmin(context.gate, settings.admission).mount(routes)
            pages = ViewPages(RouterView(context, self.mesh))
            pages.mount(routes)
            front = FrontDoor(settings.http, routes)
            url = await front.open()
            stack.push_async_callback(front.server.close)
            stack.push_async_callback(self.mesh.stop)
            await self.mesh.start(url)
            log.info("router serves", url=url, router=self.router_id, bucket=settings.bucket)
            await first_of(
                stop.wait(), self.mesh.failed(), self._housekeeping(context), pages.live.run()
            )
            self.mesh.draining = True
            pages.live.close()
            context.gate.close_in(settings.http.drain_s / 2)
            log.info("draining", open_requests=front.server.statistics().open_requests)
            await front.drain()

    async def _housekeeping(self, context: RoutingContext) -> None:
        """Renew the bookings of open requests, release those nobody renews, once a second.

        Workers that are gone are forgotten.
        """
        sequences = self.scheduler.sequences
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            now = context.clock()
            sequences.renew(context.open_requests, now)
            sequences.expire(now)
            for worker in context.predictions.workers():
                if context.router.heartbeat(worker) is None:
                    context.predictions.forget(worker)


def command(*, settings: Annotated[RouterSettings, Flat] | None = None) -> None:
    """Run one router replica of a bucket, or a router alone over the engines of --worker."""
    options = settings or RouterSettings()
    configure_logging(options.log.log_level, options.log.log_format, role="router")
    server = RouterServer(options)
    get_logger().info("router starts", router=server.router_id, bucket=options.bucket)
    run(server.serve)
