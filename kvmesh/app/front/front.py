"""The front door of router and meta-router: listener, TLS, routes, orderly end."""

import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic

import msgspec

from kvmesh.app.front.certificates import load_certificate
from kvmesh.app.front.cors import ANY, CorsGuard
from kvmesh.app.front.key_guard import KeyGuard
from kvmesh.app.front.same_origin import JSON_TYPE, refuse_forced
from kvmesh.app.process.listening import naming
from kvmesh.app.process.memory import body_budget, memory_limit
from kvmesh.app.process.place import own_place
from kvmesh.core.admission.usage_limits import UsageLimits
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.core.members.url_rules import is_remote, parse_url_rules
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.observe import get_logger
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.secret_file import read_credential, read_secret
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request_reader import Screen
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamOptions, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.sockets import (
    announced_host,
    connections_within,
    raise_open_files_limit,
)
from kvmesh.transport.reloading_tls import ReloadingTls

Route = Callable[[Exchange], None]
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
NOT_FOUND = 404
METHOD_NOT_ALLOWED = 405


class PathRoutes(Generic[E]):
    """Exact paths, then the longest prefix. A route answers or keeps the exchange."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], Callable[[E], None]] = {}
        self._prefixes: list[tuple[str, Callable[[E], None]]] = []
        self._log = get_logger()

    def add(self, method: str, path: str, route: Callable[[E], None]) -> None:
        """Serve `path`; GET routes serve HEAD, too."""
        self._exact[method, path] = route
        if method == "GET":
            self._exact["HEAD", path] = route

    def add_prefix(self, prefix: str, route: Callable[[E], None]) -> None:
        """Serve every other path that starts with `prefix`, whatever the method."""
        self._prefixes.append((prefix, route))
        self._prefixes.sort(key=lambda pair: -len(pair[0]))

    def __call__(self, exchange: E) -> None:
        """Serve one request; a kvmesh error is answered as its HTTP status."""
        request = exchange.request
        route = self._exact.get((request.method, request.path))
        if route is None:
            route = self._fallback(request.method, request.path)
        try:
            if not request.vetted and request.head.get(b"content-type") != JSON_TYPE:
                refuse_forced(request)
            route(exchange)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))

    def _fallback(self, method: str, path: str) -> Callable[[E], None]:
        allowed = sorted(known for known, known_path in self._exact if known_path == path)
        if allowed:
            problem = Problem(METHOD_NOT_ALLOWED, f"{method} {path}: use {' or '.join(allowed)}")
            allow = (b"allow", ", ".join(allowed).encode())
            return lambda exchange: exchange.fail(problem, (allow,))
        for prefix, route in self._prefixes:
            if path.startswith(prefix):
                return route
        problem = Problem(NOT_FOUND, f"{method} {path}: no such path")
        return lambda exchange: exchange.fail(problem)


Routes = PathRoutes[Exchange]
"""Those of a HTTP port."""


FEW_CONNECTIONS: Final = 2000
"""So many clients at once are a usual load; below it some may be refused."""

HTTP_FLAGS: Final = ("--http-port", "--http-host")
"""The settings of the one port where each of several processes has one of its own, too."""


class FrontDoor:
    """One listener and what it needs of the settings: with --api-keys it asks for a key.

    `tenant_header` is where a key's tenant goes; `passes_keys`: the next hop asks for it, too;
    `flags` are the settings that name port and address. `usage_limits` charge requests with
    keys (`KeyGuard`).
    Raises `ConfigError` for a file of keys that is none.
    """

    def __init__(
        self,
        settings: HttpSettings,
        handler: Route,
        *,
        tenant_header: str = "",
        passes_keys: bool = False,
        flags: tuple[str, str] = HTTP_FLAGS,
        usage_limits: UsageLimits | None = None,
    ) -> None:
        self._settings = settings
        self._flags = flags
        screen: Screen | None = None
        if settings.api_keys is not None:
            guard = KeyGuard(
                handler,
                settings.api_keys,
                tenant_header=tenant_header,
                pass_on=passes_keys,
                sessions=_sessions(settings),
                limits=usage_limits,
            )
            handler, screen = guard, guard.screen
        if settings.cors_origin:
            if ANY in settings.cors_origin and settings.api_keys is None:
                get_logger().warning(
                    "--cors-origin * without --api-keys: every page in a browser that reaches this "
                    "port may send requests and read the answers"
                )
            cors = CorsGuard(handler, settings.cors_origin, screen)
            handler, screen = cors, cors.screen
        open_files = raise_open_files_limit()
        possible = connections_within(open_files)
        limits = settings.limits
        if possible < min(limits.max_connections, FEW_CONNECTIONS):
            get_logger().warning(
                "raise the limit of open files (ulimit -n): a front door takes more connections",
                max_connections=possible,
                open_files=open_files,
            )
        bodies = _body_bytes(settings)
        limits = msgspec.structs.replace(
            limits,
            max_body_bytes=min(settings.max_body_bytes, bodies),
            max_total_body_bytes=bodies,
            max_connections=min(limits.max_connections, possible),
        )
        self.server = HttpServer(handler, limits=limits, screen=screen)

    async def open(self) -> str:
        """Listen; return the URL others reach this by: of several processes, this one.

        Raises `ConfigError` for unusable TLS files and for a port that is taken.
        """
        settings = self._settings
        context = tls_context(settings)
        with naming(*self._flags):
            own = None
            if (place := own_place()) is not None:
                own = place.own_port(settings.http_port) if self._flags == HTTP_FLAGS else 0
            host, port = settings.http_host, settings.http_port
            await self.server.start(host, port, ssl=context, own_port=own)
        return public_url(settings, self.server.port)

    async def drain(self) -> None:
        """Stop accepting, let open streams finish for --drain-s, cut the rest."""
        await self.server.drain(self._settings.drain_s)


def _body_bytes(settings: HttpSettings) -> int:
    """Return the bytes of request bodies that may be held at once, and say so."""
    limit = memory_limit()
    bodies = min(body_budget(limit), settings.limits.max_total_body_bytes)
    if bodies < settings.max_body_bytes:
        get_logger().warning(
            "bodies of --max-body-bytes do not fit in a quarter of the memory: the largest is now",
            max_body_bytes=bodies,
            memory_limit=limit,
        )
    get_logger().info("request bodies", bytes_at_once=bodies, memory_limit=limit)
    return bodies


def _sessions(settings: HttpSettings) -> bytes | None:
    """Return the secret of browsers' logins; None where --dashboard-port has them."""
    secret = read_secret(settings.session_secret_file, "--session-secret-file")
    return secret if settings.dashboard_port is None else None


def public_url(settings: HttpSettings, port: int) -> str:
    """Return the URL others reach a front door on `port` by."""
    scheme = "https" if settings.tls_cert else "http"
    return settings.advertise_url or f"{scheme}://{announced_host(settings.http_host)}:{port}"


def tls_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the server's TLS context, whose files are read anew when they change; None when no
    certificate is set.
    """
    if settings.tls_cert is None:
        for name, path in (("key", settings.tls_key), ("client-ca", settings.tls_client_ca)):
            if path is not None:
                raise ConfigError(
                    f"--tls-{name} {path} is set without --tls-cert: name the certificate chain "
                    f"with --tls-cert FILE, or leave --tls-{name} out to serve plain HTTP"
                )
        return None
    files = [settings.tls_cert, settings.tls_key, settings.tls_client_ca]
    return ReloadingTls([one for one in files if one], partial(_read_tls, settings)).context


def _read_tls(settings: HttpSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, ("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key))
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--tls-client-ca {settings.tls_client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def upstream_tls(settings: UpstreamSettings) -> ssl.SSLContext | None:
    """Return the TLS context towards the next hop; None for the default one."""
    ca, cert = settings.upstream_ca, settings.upstream_cert
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--upstream-ca {ca}: {error}") from error
    if cert is not None:
        load_certificate(context, ("--upstream-cert", cert))
    return context


def url_guard(settings: UpstreamSettings, own_urls: Sequence[str], nats_url: str) -> UrlGuard:
    """Return what judges the URLs that others name who meet at `nats_url`.

    Raises `ConfigError` for --upstream-allow.
    """
    apart = is_remote(nats_url)
    return UrlGuard(parse_url_rules(settings.upstream_allow, own_urls, apart=apart))


def upstream_pool(
    settings: UpstreamSettings, guard: UrlGuard, *, with_key: bool = True, also: Headers = ()
) -> UpstreamPool:
    """Return the connection pool towards the next hop; make it on the event loop. What it sends has
    the headers `also`.

    Raises `ConfigError` for unusable files.
    """
    key_file = settings.upstream_key_file if with_key else None
    credential = read_credential(key_file, "--upstream-key-file")

    def why_not_peer(host: str, port: int, peer: str) -> str:
        return guard.judge_peer(host, port, peer, time.monotonic())

    return UpstreamPool(
        options=UpstreamOptions(
            authorization=credential,
            also=also,
            why_not_peer=why_not_peer,
        ),
        ssl=upstream_tls(settings),
    )


def answer_json(exchange: Incoming, value: object, *, status: int = 200) -> None:
    """Answer with `value` (a msgspec struct or plain data) as JSON, indented for people."""
    exchange.respond(status, json_page(value))


def json_page(value: object) -> bytes:
    """Return `value` as JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
