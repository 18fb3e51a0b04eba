"""Ports beside the front door's: one for operators, one for people who look."""

import contextlib
import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.front.front import FrontDoor, Routes
from kvmesh.app.process.place import own_place
from kvmesh.bounds import shown, whole_number
from kvmesh.core.admission.access import LOGIN_PATHS
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.settings.http import HttpSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.problem import Problem

MAX_PORT: Final = 65535
LOCALHOST: Final = "127.0.0.1"
_NOT_FOUND: Final = 404
_TEMPORARY_REDIRECT: Final = 307


class Pages(Protocol):
    """What people look at, and what that reads."""

    def mount(self, routes: Routes, *, page: bool) -> None:
        """Serve all of it, without the `page` what it reads."""
        ...


class Ports(msgspec.Struct, frozen=True):
    """Who is served where: at `front`, unless `admin` or `people` have a port of their own."""

    front: Routes
    admin: Routes
    people: Routes

    def all(self) -> Iterable[Routes]:
        """Return each listener's, once."""
        return dict.fromkeys((self.front, self.people, self.admin))

    def operated(self) -> Iterable[Routes]:
        """Return where operators change workers: at the admin port, and at the dashboard's own."""
        return (self.admin, *([] if self.people is self.front else [self.people]))

    def asks_for_keys(self, routes: Routes) -> bool:
        """Return whether --api-keys counts there: an admin port of its own has no keys."""
        return routes is not self.admin or self.admin is self.front

    def mount(self, pages: Pages) -> None:
        """Serve `pages`, at the front door without the page itself where people have a port."""
        for routes in self.all():
            pages.mount(routes, page=routes is not self.front or routes is self.people)


async def open_ports(
    settings: HttpSettings, front: Routes, stack: contextlib.AsyncExitStack, tenant_header: str
) -> Ports:
    """Listen at --admin-port and --dashboard-port, if they are set, as long as `stack` lives.

    Raises `ConfigError` for a taken port.
    """
    admin = await _admin_routes(settings, front, stack)
    return Ports(front, admin, await _dashboard_routes(settings, front, stack, tenant_header))


async def _admin_routes(
    settings: HttpSettings, routes: Routes, stack: contextlib.AsyncExitStack
) -> Routes:
    """Return where admin paths belong: `routes`, or those of a listener on --admin-port."""
    if not settings.admin_port:
        return routes
    own = Routes()
    host, port = admin_address(settings.admin_port)
    listener = dataclasses.replace(
        settings,
        http_host=host,
        http_port=port,
        advertise_url="",
        tls_cert=None,
        tls_key=None,
        tls_client_ca=None,
        api_keys=None,
        cors_origin=(),
        admin_port="",
        dashboard_port=None,
    )
    door = FrontDoor(listener, own, flags=("--admin-port", "--admin-port"))
    await _open(door, stack, "admin port serves")
    elsewhere = partial(_elsewhere, "admin")
    for path in ("/v1/status", "/metrics", "/admin/drain", "/admin/settings"):
        routes.add("GET", path, elsewhere)
    routes.add("POST", "/admin/drain", elsewhere)
    return own


def admin_address(text: str) -> tuple[str, int]:
    """Return host and port of `[HOST:]PORT`, loopback's without a host. Raises `ConfigError`."""
    host, _, number = text.rpartition(":")
    port = whole_number(number, 0, MAX_PORT)
    if port is None:
        raise ConfigError(f"--admin-port {shown(text)}: write [HOST:]PORT, e.g. 0.0.0.0:8001")
    return host.removeprefix("[").removesuffix("]") or LOCALHOST, port


async def _dashboard_routes(
    settings: HttpSettings,
    routes: Routes,
    stack: contextlib.AsyncExitStack,
    tenant_header: str,
) -> Routes:
    """Return where the dashboard and its login belong: `routes`, or those of a listener on
    --dashboard-port, with whose pages no answer of an engine shares the origin.
    """
    own = Routes()
    if (place := own_place()) is not None and (port := dashboard_port(settings, place.count)):
        # All processes are shown by a page of their own: here is but what that reads.
        routes.add("GET", "/", partial(_to_dashboard, port))
        return own
    if settings.dashboard_port is None:
        return routes
    listener = dataclasses.replace(
        settings,
        http_port=settings.dashboard_port,
        advertise_url="",
        cors_origin=(),
        admin_port="",
        dashboard_port=None,
    )
    flags = "--dashboard-port", "--http-host"
    door = FrontDoor(listener, own, tenant_header=tenant_header, flags=flags)
    await _open(door, stack, "dashboard port serves")
    elsewhere = partial(_elsewhere, "dashboard")
    routes.add("GET", "/", elsewhere)
    for path in ("/dashboard", *LOGIN_PATHS):
        routes.add_prefix(path, elsewhere)
    return own


def dashboard_port(settings: HttpSettings, processes: int) -> int:
    """Return the port of the one page that shows several processes; 0: there is none, since it
    could not read what keys or certificates protect.
    """
    if settings.api_keys is not None or settings.tls_cert is not None:
        return 0
    return settings.dashboard_port or settings.http_port + 1 + processes


def _to_dashboard(port: int, exchange: Exchange) -> None:
    asked = urlsplit(f"//{(exchange.request.header(b'host') or b'').decode('latin-1')}")
    host = asked.hostname or "127.0.0.1"
    named = f"[{host}]" if ":" in host else host
    headers = ((b"location", f"http://{named}:{port}/".encode()), (b"cache-control", b"no-store"))
    exchange.respond(_TEMPORARY_REDIRECT, b"", headers=headers)


async def _open(door: FrontDoor, stack: contextlib.AsyncExitStack, serves: str) -> None:
    url = await door.open()
    stack.push_async_callback(door.server.close)
    get_logger().info(serves, url=url)


def _elsewhere(port: str, exchange: Exchange) -> None:
    exchange.fail(Problem(_NOT_FOUND, f"{exchange.request.path} is on the {port} port"))
