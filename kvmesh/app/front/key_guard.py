"""The key a client shows at the front door: checked, turned into its tenant, and taken off."""

import time
from base64 import b64decode
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from kvmesh._native import Names
from kvmesh.app.front.browser_login import MOST_BYTES, BrowserLogin, without_cookie
from kvmesh.app.front.same_origin import is_foreign
from kvmesh.core.admission.access import (
    KEY_HEADER,
    LOGIN_PATHS,
    RESIDENCY_HEADER,
    ROLES_HEADER,
    check_role,
    forwarded_roles,
    tenant_of,
)
from kvmesh.core.admission.api_keys import ApiKey, KeyFile, KeyRing, parse_file
from kvmesh.core.admission.paths import Role
from kvmesh.core.admission.usage import MOST_SHOWN
from kvmesh.core.admission.usage_limits import Account, UsageLimits, key_name, tenant_name
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.observe import get_logger
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

CHECK_S: Final = 1.0
"""How often it is looked whether the file changed."""

MOST_ADMITTED: Final = 1024
"""Keys as they were shown, each with a path it may have, that are not looked up anew."""

UNAUTHORIZED: Final = 401
_BEARER: Final = (b"www-authenticate", b'Bearer realm="kvmesh"')
_TOO_LONG: Final = Problem(413, f"a login has {MOST_BYTES} bytes at most")
_READS: Final = frozenset({"GET", "HEAD"})
_PAGES: Final = "/dashboard"
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})


class Guarded(Incoming, Protocol):
    """A request at a front door: `added` are rendered header lines of its answer."""

    added: bytes


G = TypeVar("G", bound=Guarded)


class _Admitted(msgspec.Struct, frozen=True, gc=False):
    """A key with the accounts that its requests are charged to, and what tells the next hop."""

    key: ApiKey
    accounts: tuple[Account, ...] = ()
    added: Headers = ()


class KeyGuard(Generic[G]):
    """Stands in front of a handler. The file is read anew when it changes; a broken one is said
    once and changes nothing.

    `tenant_header` is set to the key's tenant, `ROLES_HEADER` to its roles, `KEY_HEADER` to its
    name, whatever the client sent (a proxy's tenant and key stay, and which of the proxy's roles
    that one has).
    `pass_on`: leave the key on the request, for the router behind a meta-router asks again.
    `limits` charge requests by what the file says; None: their number alone, here alone.
    `sessions`: browsers may show a key once, and then a cookie; the secret seals those, b"" is one
    of this process alone.
    Raises `ConfigError` when the file cannot be read or is no file of keys.
    """

    def __init__(
        self,
        handler: Callable[[G], None],
        path: Path,
        *,
        tenant_header: str,
        pass_on: bool,
        sessions: bytes | None = None,
        limits: UsageLimits | None = None,
    ) -> None:
        self._handler = handler
        self._path = path
        self._tenant = tenant_header.lower().encode()
        held = {ROLES_HEADER, KEY_HEADER, RESIDENCY_HEADER}
        dropped = {*held, *(() if pass_on else _CREDENTIALS)}
        self._drop = Names(dropped | {self._tenant} - {b""}, b"")
        self._stamp = _stamp(path)
        read = read_file(path)
        self._ring = KeyRing(read.keys)
        self.limits = UsageLimits(tokens=False) if limits is None else limits
        self.limits.replace(read.limits, time.monotonic())
        self._next_check_s = time.monotonic() + CHECK_S
        self._admitted: dict[tuple[bytes | None, bytes | None, str], _Admitted] = {}
        self._login: BrowserLogin | None = None
        if sessions is not None:
            self._login = BrowserLogin(self._ring, sessions, time.time, time.monotonic)

    def __call__(self, exchange: G) -> None:
        """Serve the exchange if its key is good, else refuse it."""
        now = time.monotonic()
        if now >= self._next_check_s:
            self._next_check_s = now + CHECK_S
            self._check(now)
        if self._login is not None and exchange.request.path in LOGIN_PATHS:
            self._login.serve(exchange)
            return
        try:
            self._admit(exchange, now)
        except KvMeshError as error:
            self._refuse(exchange, Problem.from_error(error))
            return
        self._handler(exchange)

    def _admit(self, exchange: G, now: float) -> None:
        """Have a request stand for its key, on a path that needs one. Raises `RequestError`."""
        request = exchange.request
        head = request.head
        shown = head.get(b"authorization")
        said = shown, None if shown else head.get(b"x-api-key"), request.path
        admitted = self._admitted.get(said)
        if admitted is None:
            found = self._judge(request)
            if found is None:
                return
            admitted = found if found.key.proxy else self._told(request.path, found)
            if is_told_alone(request):
                if len(self._admitted) >= MOST_ADMITTED:
                    self._admitted.clear()
                self._admitted[said] = admitted
        if admitted.key.proxy:
            admitted = self._of_proxy(request, admitted.key)
        if admitted.accounts:
            self._charge(exchange, admitted.accounts, now)
        if head.get(b"cookie") is not None:
            request.replace_headers(without_cookie(request.headers))
        request.change_headers(self._drop, admitted.added)

    def _charge(self, exchange: G, accounts: tuple[Account, ...], now: float) -> None:
        """Charge a request, until it is over, and have its answer tell its limits. Raises
        `RequestError`.
        """
        limits = self.limits
        try:
            ticket = limits.admit(accounts, len(exchange.request.body), now, time.time())
        finally:
            exchange.added += limits.headers(accounts, now)
        exchange.scope.held.append(partial(limits.end, ticket))

    def _judge(self, request: Request) -> _Admitted | None:
        """Return whose request it is, as `KeyRing.admit`: by its key, or else by its cookie.

        Files of the page, of which a browser loads a dozen, are none of a key's requests then.
        """
        shown = credential(request)
        if shown or self._login is None or (key := self._login.find(request)) is None:
            found = self._ring.admit(request.path, shown)
            return None if found is None else self._with_limits(found)
        return _Admitted(key) if request.path.startswith(_PAGES) else self._with_limits(key)

    def _with_limits(self, key: ApiKey) -> _Admitted:
        return _Admitted(key, self.limits.of(key_name(key.name), tenant_name(key.tenant)))

    def screen(self, request: Request) -> Problem | None:
        """Return why a request whose body is still to come need not send it."""
        if self._login is not None and request.path in LOGIN_PATHS:
            return _TOO_LONG
        if self._login is not None and self._login.find(request) is not None:
            return None
        try:
            self._ring.admit(request.path, credential(request))
        except KvMeshError as error:
            return msgspec.structs.replace(Problem.from_error(error), challenge=_BEARER[1])
        return None

    def _of_proxy(self, request: Request, key: ApiKey) -> _Admitted:
        """Return what a request of a proxy is admitted as, which says whose it is."""
        sent, asked = request.header(self._tenant), request.header(ROLES_HEADER)
        roles = key.roles or ()
        roles = roles if asked is None else forwarded_roles(asked, roles)
        tenant = key.tenant.encode() if sent is None else sent
        named = request.header(KEY_HEADER)
        name = key_name(key.name).encode() if named is None else named
        accounts = self.limits.of(
            name.decode("utf-8", "replace")[:MOST_SHOWN], tenant.decode("latin-1")[:MOST_SHOWN]
        )
        limited = msgspec.structs.replace(key, roles=roles)
        added = self._added(request.path, (tenant, name), limited)
        if not key.residency and request.header(RESIDENCY_HEADER) is not None:
            stays = tenant_of(request.headers, RESIDENCY_HEADER)
            added = *added, (RESIDENCY_HEADER, stays.encode("latin-1"))
        return _Admitted(key, accounts, added)

    def _told(self, path: str, found: _Admitted) -> _Admitted:
        """Return what tells the next hop of a key that is no proxy's. Raises `RequestError`."""
        key = found.key
        owner = key.tenant.encode(), key_name(key.name).encode()
        return _Admitted(key, found.accounts, self._added(path, owner, key))

    def _added(self, path: str, owner: tuple[bytes, bytes], key: ApiKey) -> Headers:
        """Return what tells the next hop of the tenant and the name of a key, its roles and where
        its data stays. Raises `RequestError` where it may not have the path.
        """
        roles, (tenant, name) = key.roles or (), owner
        check_role(path, roles)
        told = (ROLES_HEADER, words_of(roles)), (KEY_HEADER, name)
        stays = ((RESIDENCY_HEADER, ",".join(key.residency).encode()),) if key.residency else ()
        return (*(((self._tenant, tenant),) if self._tenant else ()), *told, *stays)

    def _check(self, now: float) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            read = read_file(self._path)
            self._stamp = stamp
        except ConfigError as error:
            get_logger().warning("api keys not read, the old ones stay", error=str(error))
            self._stamp = (-1, -1)
            self._next_check_s += 30.0
            return
        self._ring.replace(read.keys)
        self.limits.replace(read.limits, now)
        self._admitted.clear()
        if self._login is not None:
            self._login.refresh()
        get_logger().info("api keys read", path=str(self._path), keys=len(read.keys))

    def _refuse(self, exchange: Incoming, problem: Problem) -> None:
        if problem.status == UNAUTHORIZED:
            page = b"text/html" in (exchange.request.header(b"accept") or b"")
            if page and self._login is not None and exchange.request.method in _READS:
                self._login.ask(exchange, UNAUTHORIZED, (_BEARER,))
            else:
                exchange.fail(problem, (_BEARER,))
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


def read_file(path: Path) -> KeyFile:
    """Return the keys and limits in a file. Raises `ConfigError`."""
    try:
        return parse_file(path.read_text(encoding="utf-8"), f"--api-keys {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys {path}: {error}") from error


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"--api-keys {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size
