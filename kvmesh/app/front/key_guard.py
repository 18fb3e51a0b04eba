"""The key a client shows at the front door: checked, turned into its tenant, and taken off."""

import time
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, Generic

import msgspec

from kvmesh._native import Names
from kvmesh.app.front.browser_login import MOST_BYTES, BrowserLogin, without_cookie
from kvmesh.app.front.same_origin import is_foreign
from kvmesh.core.admission.access import (
    LOGIN_PATHS,
    RESIDENCY_HEADER,
    ROLES_HEADER,
    check_role,
    forwarded_roles,
)
from kvmesh.core.admission.api_keys import ApiKey, KeyRing, parse_keys
from kvmesh.core.admission.paths import Role
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.observe import get_logger
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

CHECK_S: Final = 1.0
"""How often it is looked whether the file changed."""

MOST_ADMITTED: Final = 1024
"""Keys as they were shown, each with a path it may have, that are not looked up anew."""

UNAUTHORIZED: Final = 401
TOO_MANY: Final = 429
_BEARER: Final = (b"www-authenticate", b'Bearer realm="kvmesh"')
_TOO_LONG: Final = Problem(413, f"a login has {MOST_BYTES} bytes at most")
_READS: Final = frozenset({"GET", "HEAD"})
_PAGES: Final = "/dashboard"
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})


class KeyGuard(Generic[E]):
    """Stands in front of a handler. The file is read anew when it changes; a broken one is said
    once and changes nothing.

    `tenant_header` is set to the key's tenant, `ROLES_HEADER` to its roles, whatever the client
    sent (a proxy's tenant stays, and which of the proxy's roles that one has).
    `pass_on`: leave the key on the request, for the router behind a meta-router asks again.
    `sessions`: browsers may show a key once, and then a cookie; the secret seals those, b"" is one
    of this process alone.
    Raises `ConfigError` when the file cannot be read or is no file of keys.
    """

    def __init__(
        self,
        handler: Callable[[E], None],
        path: Path,
        *,
        tenant_header: str,
        pass_on: bool,
        sessions: bytes | None = None,
    ) -> None:
        self._handler = handler
        self._path = path
        self._tenant = tenant_header.lower().encode()
        dropped = {ROLES_HEADER, RESIDENCY_HEADER, *(() if pass_on else _CREDENTIALS)}
        self._drop = Names(dropped | {self._tenant} - {b""}, b"")
        self._stamp = _stamp(path)
        self._ring = KeyRing(read_keys(path))
        self._next_check_s = time.monotonic() + CHECK_S
        self._admitted: dict[tuple[bytes | None, bytes | None, str], tuple[ApiKey, Headers]] = {}
        self._login: BrowserLogin | None = None
        if sessions is not None:
            self._login = BrowserLogin(self._ring, sessions, time.time, time.monotonic)

    def __call__(self, exchange: E) -> None:
        """Serve the exchange if its key is good, else refuse it."""
        request = exchange.request
        now = time.monotonic()
        if now >= self._next_check_s:
            self._next_check_s = now + CHECK_S
            self._check()
        if self._login is not None and request.path in LOGIN_PATHS:
            self._login.serve(exchange)
            return
        try:
            self._admit(request, now)
        except KvMeshError as error:
            self._refuse(exchange, Problem.from_error(error))
            return
        self._handler(exchange)

    def _admit(self, request: Request, now: float) -> None:
        """Have a request stand for its key, on a path that needs one. Raises `RequestError`."""
        head = request.head
        shown = head.get(b"authorization")
        said = shown, None if shown else head.get(b"x-api-key"), request.path
        admitted = self._admitted.get(said)
        if admitted is not None:
            key, added = admitted
            if key.requests_per_minute:
                self._ring.spend(key, now)
        else:
            found = self._judge(request, now)
            if found is None:
                return
            key = found
            added = () if key.proxy else self._added(request.path, key.tenant.encode(), key)
            if is_told_alone(request):
                if len(self._admitted) >= MOST_ADMITTED:
                    self._admitted.clear()
                self._admitted[said] = key, added
        if key.proxy:
            added = self._of_proxy(request, key)
        if head.get(b"cookie") is not None:
            request.replace_headers(without_cookie(request.headers))
        request.change_headers(self._drop, added)

    def _judge(self, request: Request, now: float) -> ApiKey | None:
        """Return whose request it is, as `KeyRing.admit`: by its key, or else by its cookie.

        Files of the page, of which a browser loads a dozen, are none of a key's requests then.
        """
        shown = credential(request)
        if shown or self._login is None or (key := self._login.find(request)) is None:
            return self._ring.admit(request.path, shown, now)
        if not request.path.startswith(_PAGES):
            self._ring.spend(key, now)
        return key

    def screen(self, request: Request) -> Problem | None:
        """Return why a request whose body is still to come need not send it."""
        if self._login is not None and request.path in LOGIN_PATHS:
            return _TOO_LONG
        try:
            self._ring.check(request.path, credential(request))
        except KvMeshError as error:
            return msgspec.structs.replace(Problem.from_error(error), challenge=_BEARER[1])
        return None

    def _of_proxy(self, request: Request, key: ApiKey) -> Headers:
        """Return what to put on a request of a proxy, which says whose it is."""
        sent, limits = request.header(self._tenant), request.header(ROLES_HEADER)
        roles = key.roles or ()
        roles = roles if limits is None else forwarded_roles(limits, roles)
        stays = request.header(RESIDENCY_HEADER)
        limited = msgspec.structs.replace(key, roles=roles)
        added = self._added(request.path, key.tenant.encode() if sent is None else sent, limited)
        return added if key.residency or stays is None else (*added, (RESIDENCY_HEADER, stays))

    def _added(self, path: str, tenant: bytes, key: ApiKey) -> Headers:
        """Return what tells the next hop of a key. Raises `RequestError` where it may not have the
        path.
        """
        roles = key.roles or ()
        check_role(path, roles)
        added = [(self._tenant, tenant)] if self._tenant else []
        added.append((ROLES_HEADER, words_of(roles)))
        if key.residency:
            added.append((RESIDENCY_HEADER, ",".join(key.residency).encode()))
        return tuple(added)

    def _check(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            keys = read_keys(self._path)
            self._stamp = stamp
        except ConfigError as error:
            get_logger().warning("api keys not read, the old ones stay", error=str(error))
            self._stamp = (-1, -1)
            self._next_check_s += 30.0
            return
        self._ring.replace(keys)
        self._admitted.clear()
        if self._login is not None:
            self._login.refresh()
        get_logger().info("api keys read", path=str(self._path), keys=len(keys))

    def _refuse(self, exchange: Incoming, problem: Problem) -> None:
        if problem.status == UNAUTHORIZED:
            page = b"text/html" in (exchange.request.header(b"accept") or b"")
            if page and self._login is not None and exchange.request.method in _READS:
                self._login.ask(exchange, UNAUTHORIZED, (_BEARER,))
            else:
                exchange.fail(problem, (_BEARER,))
        elif problem.status == TOO_MANY:
            exchange.fail(problem, ((b"retry-after", b"5"),))
        else:
            exchange.fail(problem)


@cache
def words_of(roles: tuple[Role, ...]) -> bytes:
    """Return what `ROLES_HEADER` says of these roles, of which there are few."""
    return " ".join(roles).encode()


def is_told_alone(request: Request) -> bool:
    """Return whether a request shows a key, in one header that says all of it: a password counts
    by the page that it comes from, too, and a cookie may stand for a key that is empty.
    """
    shown = request.header(b"authorization")
    bearer = not shown or shown.partition(b" ")[0].lower() == b"bearer"
    return bearer and credential(request) != ""


def credential(request: Request) -> str:
    """Return the key a client shows, "" for none: a bearer, `x-api-key` (Anthropic's), or a
    password, which a browser may add for any page.
    """
    scheme, _, sent = (request.header(b"authorization") or b"").partition(b" ")
    match scheme.lower():
        case b"bearer":
            key = sent
        case b"basic":
            key = b"" if is_foreign(request) else _password(sent)
        case _:
            key = request.header(b"x-api-key") or b""
    return key.strip().decode("latin-1")


def _password(sent: bytes) -> bytes:
    try:
        return b64decode(sent.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""


def read_keys(path: Path) -> dict[str, ApiKey]:
    """Return the keys in a file. Raises `ConfigError`."""
    try:
        return parse_keys(path.read_text(encoding="utf-8"), f"--api-keys {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys {path}: {error}") from error


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"--api-keys {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size
