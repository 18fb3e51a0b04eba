"""The key a client shows at the front door: checked, turned into its tenant, and taken off."""

import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic

import msgspec

from kvmesh.core.admission.access import ROLES_HEADER, check_role, roles_told
from kvmesh.core.admission.api_keys import ApiKey, KeyRing, parse_keys
from kvmesh.errors import ConfigError, KvMeshError
from kvmesh.observe import get_logger
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.problem import Problem

CHECK_S: Final = 1.0
"""How often it is looked whether the file changed."""

UNAUTHORIZED: Final = 401
TOO_MANY: Final = 429
_BEARER: Final = (b"www-authenticate", b'Bearer realm="kvmesh"')
_BASIC: Final = (b"www-authenticate", b'Basic realm="kvmesh: the API key as password"')
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})


class KeyGuard(Generic[E]):
    """Stands in front of a handler. The file is read anew when it changes; a broken one is said
    once and changes nothing.

    `tenant_header` is set to the key's tenant, `ROLES_HEADER` to its roles, whatever the client
    sent (a proxy's tenant stays, and which of the proxy's roles that one has).
    `pass_on`: leave the key on the request, for the router behind a meta-router asks again.
    Raises `ConfigError` when the file cannot be read or is no file of keys.
    """

    def __init__(
        self, handler: Callable[[E], None], path: Path, *, tenant_header: str, pass_on: bool
    ) -> None:
        self._handler = handler
        self._path = path
        self._tenant = tenant_header.lower().encode()
        self._drop: frozenset[bytes] = frozenset() if pass_on else _CREDENTIALS
        self._stamp = _stamp(path)
        self._ring = KeyRing(read_keys(path))
        self._next_look_s = time.monotonic() + CHECK_S

    def __call__(self, exchange: E) -> None:
        """Serve the exchange if its key is good, else refuse it."""
        request = exchange.request
        now = time.monotonic()
        if now >= self._next_look_s:
            self._next_look_s = now + CHECK_S
            self._look()
        try:
            key = self._ring.admit(request.path, credential(request), now)
        except KvMeshError as error:
            _refuse(exchange, Problem.from_error(error))
            return
        try:
            if key is not None:
                self._sign(request, key)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))
            return
        self._handler(exchange)

    def screen(self, request: Request) -> Problem | None:
        """Return why a request whose body is still to come need not send it."""
        try:
            self._ring.check(request.path, credential(request))
        except KvMeshError as error:
            return msgspec.structs.replace(Problem.from_error(error), challenge=_BEARER[1])
        return None

    def _sign(self, request: Request, key: ApiKey) -> None:
        """Put the key's tenant and roles on the request, and take off what is not to be passed on.

        Raises `RequestError` where they may not have its path.
        """
        drop, roles = self._drop | {ROLES_HEADER}, key.roles or ()
        sent = request.header(self._tenant) if key.proxy else None
        limits = request.header(ROLES_HEADER) if key.proxy else None
        if limits is not None:
            roles = roles_told(limits, roles)
        check_role(request.path, roles)
        drop |= {self._tenant}
        kept = [header for header in request.headers if header[0] not in drop]
        if self._tenant:
            kept.append((self._tenant, key.tenant.encode() if sent is None else sent))
        kept.append((ROLES_HEADER, " ".join(roles).encode()))
        request.replace_headers(kept)

    def _look(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            keys = read_keys(self._path)
            self._stamp = stamp
        except ConfigError as error:
            get_logger().warning("api keys not read, the old ones stay", error=str(error))
            self._stamp = (-1, -1)
            self._next_look_s += 30.0
            return
        self._ring.replace(keys)
        get_logger().info("api keys read", path=str(self._path), keys=len(keys))


def credential(request: Request) -> str:
    """Return the key a client shows, "" for none: a bearer, `x-api-key` (Anthropic's), or the
    password a browser asked its user for.
    """
    scheme, _, sent = (request.header(b"authorization") or b"").partition(b" ")
    match scheme.lower():
        case b"bearer":
            key = sent
        case b"basic":
            key = _password(sent)
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


def _refuse(exchange: Incoming, problem: Problem) -> None:
    if problem.status == UNAUTHORIZED:
        page = b"text/html" in (exchange.request.header(b"accept") or b"")
        exchange.fail(problem, (_BASIC,) if page else (_BEARER,))
    elif problem.status == TOO_MANY:
        exchange.fail(problem, ((b"retry-after", b"5"),))
    else:
        exchange.fail(problem)
