"""A picker's two ports: one that gateways ask, and one for probes, metrics and people."""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from kvmesh.app.front.front import FrontDoor, PathRoutes, Routes
from kvmesh.app.front.key_guard import KeyGuard
from kvmesh.app.picker.addresses import Addresses, Located
from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.picker.door import Handler, PickDoor
from kvmesh.app.picker.exchange import PickExchange
from kvmesh.app.picker.gateway_wishes import GatewayWishes
from kvmesh.app.picker.health import PROCESSOR, PickerHealth
from kvmesh.app.picker.pick import Pick, PickShared
from kvmesh.app.picker.sidecar_request import SidecarRequest, SidecarWay
from kvmesh.app.picker.stream import answer_streams
from kvmesh.app.picker.unwatched import UnwatchedPicks
from kvmesh.app.process.listening import naming
from kvmesh.app.router.door import DoorRole, Serving
from kvmesh.app.serve.gateway import Gateway
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.figure import Source
from kvmesh.app.views.pick_figures import GATEWAYS, PICKS, UNWATCHED
from kvmesh.core.routing.choice.split_sidecars import SIDECARS
from kvmesh.errors import ConfigError, RequestError
from kvmesh.observe import get_logger
from kvmesh.settings.picker import GrpcSettings, PickerSettings
from kvmesh.transport.grpc.health import HealthService
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.server import GrpcServer, grpc_context
from kvmesh.transport.http.openai import OTHERS
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.reloading_tls import ReloadingTls

PROCESS: Final = f"/{PROCESSOR}/Process"
SLACK_BYTES: Final = 1 << 20
MOST_MESSAGE_BYTES: Final = 1 << 31
"""No message of protobuf is larger."""


class PickerPorts:
    """Requests come as questions of gateways, and leave as picks. A `Door` of a replica."""

    role: DoorRole = "picker"

    def __init__(self, settings: PickerSettings) -> None:
        self.alternatives = settings.picker_alternatives
        self._sidecar = (
            None if settings.picker_prefill == "picker" else SIDECARS[settings.picker_prefill]
        )
        self._grpc = settings.grpc
        self._settings = settings.router
        self._counts = PickCounts()
        self._health: HealthService
        self._addresses: Addresses
        self._views: FrontDoor
        self._server: GrpcServer
        self._unwatched: UnwatchedPicks

    def mount(self, serving: Serving, routes: Routes) -> None:
        """Have questions decided, and serve what tells of it on `routes`.

        Raises `ConfigError` for a file of keys that is none.
        """
        settings, context = self._settings, serving.context
        tenant_header = settings.admission.tenant_header
        self._views = FrontDoor(settings.http, routes, tenant_header=tenant_header)
        addresses = self._addresses = Addresses(
            context.clock,
            partial(_located, context),
            lambda: context.workers.everyone(context.clock()),
        )
        self._unwatched = UnwatchedPicks(context)
        shared = PickShared(serving.splits.pool, addresses, self._counts, self._unwatched)
        sidecar = self._sidecar
        if sidecar is not None:
            way = SidecarWay(sidecar, self._unwatched)
            serving.splits.divide = partial(SidecarRequest, way=way)
            serving.splits.always = sidecar.always
        gateway = Gateway(
            context,
            serving.reader,
            partial(Pick, shared=shared),
            serving.options,
            serving.splits,
            serving.viewers,
        )
        gateway.mount_views(routes)
        for path in OTHERS:
            routes.add_prefix(path, self._refuse)
        routes.add_prefix("/v1/", self._refuse)
        self._health = HealthService(PickerHealth(serving.why_not))
        handler = _mounted(gateway)
        self._limits = serving.context.router.limits
        self._server = self._make_server(handler, addresses, serving.priority_of)

    def figures(self) -> Iterable[Source]:
        """Return what is counted of gateways and their questions."""
        return (
            GATEWAYS.of(self._server.statistics),
            PICKS.of(lambda: self._counts),
            UNWATCHED.of(self._unwatched.statistics),
        )

    async def open(self) -> str:
        """Listen at both ports; see `Door`."""
        grpc = self._grpc
        if self._settings.upstream.upstream_key_file and grpc.grpc_tls_client_ca is None:
            get_logger().warning(
                "anyone who may ask at the gRPC port gets the engines' key: give"
                " --grpc-tls-client-ca, or let gateways alone reach the port",
                port=grpc.grpc_port,
            )
        context = grpc_tls(grpc)
        with naming("--grpc-port", "--grpc-host"):
            await self._server.start(grpc.grpc_host, grpc.grpc_port, context)
        get_logger().info(
            "gateways may ask", host=grpc.grpc_host, port=self._server.port, service=PROCESSOR
        )
        return await self._views.open()

    def open_requests(self) -> int:
        """Return how many requests of gateways are followed."""
        return self._counts.open_streams

    async def give_notice(self) -> None:
        """Say by gRPC health that nothing should come for --notice-s, and serve all the same."""
        self._health.refresh()
        await asyncio.sleep(self._grpc.notice_s)

    async def drain(self) -> None:
        """Take nothing new, and let open requests finish for --drain-s, cut the rest."""
        self._health.close()
        await self._server.drain(self._settings.http.drain_s)
        await self._views.drain()

    async def close(self) -> None:
        """Stop at once; safe to call twice."""
        self._health.close()
        self._addresses.close()
        await self._server.close()
        self._unwatched.close()
        await self._views.server.close()

    def _make_server(
        self,
        handler: Handler,
        addresses: Addresses,
        priority_of: Callable[[str], int | None] | None,
    ) -> GrpcServer:
        """Return the server of the port that gateways ask; its bodies count with the others."""
        views, keys = self._views.server, self._settings.http.api_keys
        screen: Screen | None = None
        if keys is not None:
            tenant_header = self._settings.admission.tenant_header
            guard = KeyGuard(
                handler, keys, tenant_header=tenant_header, pass_on=False, limits=self._limits
            )
            handler, screen = guard, guard.screen
        door = PickDoor(
            handler, addresses, _report, self._counts, limits=views.limits, screen=screen
        )
        door.budget = views.bodies
        tenant_header = self._settings.admission.tenant_header
        door.adapters.append(GatewayWishes(tenant_header, priority_of))
        # A gateway that buffers a body sends it in one message; a little more is still refused in
        # HTTP's own words.
        bodies, most = views.limits, GrpcLimits()
        limits = GrpcLimits(
            max_message_bytes=min(
                max(most.max_message_bytes, bodies.max_body_bytes + SLACK_BYTES), MOST_MESSAGE_BYTES
            ),
            max_held_bytes=min(most.max_held_bytes, bodies.max_total_body_bytes),
        )
        return GrpcServer({PROCESS: answer_streams(door), **self._health.routes}, limits)

    def _refuse(self, exchange: Exchange) -> None:
        raise RequestError(
            f"{exchange.request.path:.80} is not served here: this is the port of an endpoint"
            " picker's probes and views. Send requests to the gateway; it asks the picker where"
            f" they go, at gRPC port {self._server.port}",
            status=404,
        )


def _mounted(gateway: Gateway[PickExchange]) -> Handler:
    """Return what has questions decided: by all of a request, or by its head alone."""
    whole, unread = PathRoutes[PickExchange](), PathRoutes[PickExchange]()
    gateway.mount(whole)
    gateway.mount_unread(unread)

    def decide(exchange: PickExchange) -> None:
        (unread if exchange.unread else whole)(exchange)

    return decide


def _located(context: RoutingContext) -> Iterator[Located]:
    return (Located(one.worker, one.url) for one in context.router.workers())


def _report(error: Exception, request_id: bytes) -> None:
    get_logger().error("request crashed", request_id=request_id.decode("latin-1"), exc_info=error)


def grpc_tls(settings: GrpcSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the port of gateways; None when no certificate is set.

    Raises `ConfigError` for unusable files.
    """
    cert, key, ca = settings.grpc_tls_cert, settings.grpc_tls_key, settings.grpc_tls_client_ca
    if cert is not None:
        try:
            files = [path for path in (cert, key, ca) if path is not None]
            return ReloadingTls(files, partial(grpc_context, cert, key, ca)).context
        except ConfigError as error:
            raise ConfigError(
                f"--grpc-tls-cert, --grpc-tls-key, --grpc-tls-client-ca: {error}"
            ) from error
    for name, path in (("key", key), ("client-ca", ca)):
        if path is not None:
            raise ConfigError(
                f"--grpc-tls-{name} {path} is set without --grpc-tls-cert: name the certificate "
                f"chain with --grpc-tls-cert FILE, or leave --grpc-tls-{name} out"
            )
    return None
