"""The page that asks a browser's user for a key once, and the cookie that stands for it."""

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import escape
from importlib.resources import files
from os import urandom
from typing import Final
from urllib.parse import parse_qs

import msgspec

from kvmesh.app.front.same_origin import is_foreign
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.access import LOGIN, LOGOUT, SESSION, role_for
from kvmesh.core.admission.api_keys import ApiKey, KeyRing, digest_of
from kvmesh.core.admission.browser_sessions import NONCE_BYTES, SESSION_S, BrowserSessions
from kvmesh.core.admission.failed_logins import FailedLogins, client_at
from kvmesh.observe import get_logger
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

NAME: Final = b"kvmesh-session"
SECURE_NAME: Final = b"__Host-" + NAME
"""Over TLS: browsers take it of this host alone, whatever a neighbour's page would plant."""

HOME: Final = b"/dashboard"
MOST_BYTES: Final = 4096
"""Of a login's body: a key has 47."""

COOKIE_PATHS: Final = frozenset({"/admin/drain", "/admin/settings", "/metrics"})
"""What a cookie opens besides the paths of the role `view`, by GET."""

COOKIE_CHANGES: Final = frozenset({"/admin/drain"})
"""What a cookie opens by POST: of JSON, for a page that says to be of this origin."""

_READS: Final = frozenset({"GET", "HEAD"})
_HTML: Final = b"text/html; charset=utf-8"
_UNKNOWN: Final = "This key is not known."
_FOREIGN: Final = Problem(403, "a page of another site may not log in here: open this one itself")
_PAGE: Final = (files("kvmesh.app.front") / "login.html").read_text(encoding="utf-8")
_STYLE: Final = _PAGE.partition("<style>")[2].partition("</style>")[0]
_SAFE: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'sha256-%b'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'" % b64encode(sha256(_STYLE.encode()).digest()),
    ),
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer browsers send forms with the origin null.
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class SessionView(msgspec.Struct, frozen=True):
    """Who looks: `login` says whether this server asks for keys at all. `roles` are the key's."""

    login: bool
    signed_in: bool = False
    tenant: str = ""
    roles: tuple[str, ...] = ()


NO_LOGIN: Final = SessionView(login=False)


class _Shown(msgspec.Struct):
    key: str = ""


class BrowserLogin:
    """Serves `/login`, `/logout` and `/session`, and reads whose cookie a request has.

    A cookie opens what is read of views, by GET, for pages of this origin, and `COOKIE_CHANGES`: no
    inference, nothing else that changes anything. It is none of another process unless both have
    the same `secret`.
    `clock` tells Unix time, `timer` seconds.
    """

    def __init__(
        self,
        ring: KeyRing,
        secret: bytes,
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self._ring = ring
        self._sessions = BrowserSessions(secret or urandom(32))
        self._failed = FailedLogins()
        self._clock = clock
        self._timer = timer
        self.refresh()

    def refresh(self) -> None:
        """Know the ring's keys of now."""
        self._sessions.replace(self._ring.digests())

    def find(self, request: Request) -> ApiKey | None:
        """Return the key whose session lets a request be served; None: it has none, or may not."""
        path = request.path
        if is_foreign(request):
            return None
        if request.method in _READS:
            opens = role_for(path) == "view" or path in COOKIE_PATHS
        else:
            opens = request.method == "POST" and path in COOKIE_CHANGES and _is_own(request)
        return self._signed_in(request) if opens else None

    def serve(self, exchange: Incoming) -> None:
        """Answer one of the three paths."""
        request = exchange.request
        reads = request.method in _READS
        match request.path, reads, request.method:
            case ("/login", True, _):
                exchange.respond(200, login_page(), content_type=_HTML, headers=_SAFE)
            case ("/session", True, _):
                body = msgspec.json.encode(self._view(request))
                exchange.respond(200, body, headers=((b"cache-control", b"no-store"),))
            case ("/login", _, "POST"):
                self._log_in(exchange)
            case ("/logout", _, "POST"):
                self._log_out(exchange)
            case _:
                allowed = _ALLOWED[request.path]
                problem = Problem(405, f"{request.method} {request.path}: use {allowed}")
                exchange.fail(problem, ((b"allow", allowed.encode()),))

    def ask(self, exchange: Incoming, status: int, headers: Headers) -> None:
        """Ask the user of a browser for a key, where a page was to be."""
        exchange.respond(status, login_page(), content_type=_HTML, headers=(*_SAFE, *headers))

    def _view(self, request: Request) -> SessionView:
        key = None if is_foreign(request) else self._signed_in(request)
        if key is None:
            return SessionView(login=True)
        return SessionView(login=True, signed_in=True, tenant=key.tenant, roles=key.roles or ())

    def _signed_in(self, request: Request) -> ApiKey | None:
        value = cookie_of(request)
        digest = self._sessions.find(value, self._clock()) if value else None
        return None if digest is None else self._ring.get(digest)

    def _log_in(self, exchange: Incoming) -> None:
        request, now = exchange.request, self._timer()
        if is_foreign(request):
            exchange.fail(_FOREIGN)
            return
        if len(request.body) > MOST_BYTES:
            exchange.fail(Problem(413, f"a login has {MOST_BYTES} bytes at most"))
            return
        client = _client(request)
        wait_s = self._failed.wait_s(client, now)
        if wait_s > 0.0:
            seconds = int(wait_s) + 1
            text = f"Too many keys that are not known came from here: wait {seconds} s."
            self._refuse(exchange, 429, text, ((b"retry-after", b"%d" % seconds),))
            return
        shown = _shown_key(request)
        key = self._ring.get(digest_of(shown)) if shown else None
        if key is None:
            self._failed.failed(client, now)
            get_logger().warning("login failed: key not known", client=client)
            self._refuse(exchange, 401, _UNKNOWN)
            return
        if not {"view", "operate"} & {*(key.roles or ())}:
            self._refuse(exchange, 403, "This key may not look: make one with --role view.")
            return
        get_logger().info("login", tenant=key.tenant, client=client)
        value = self._sessions.begin(key.sha256, urandom(NONCE_BYTES), self._clock())
        self._go(exchange, HOME, _cookie(request, value.encode(), int(SESSION_S)))

    def _log_out(self, exchange: Incoming) -> None:
        request = exchange.request
        if is_foreign(request):
            exchange.fail(_FOREIGN)
            return
        if value := cookie_of(request):
            self._sessions.end(value, self._clock())
        self._go(exchange, LOGIN.encode(), _cookie(request, b"", 0))

    def _go(self, exchange: Incoming, where: bytes, cookie: bytes) -> None:
        """Set the cookie; send a form's browser on, and a script nowhere."""
        headers = [(b"set-cookie", cookie), (b"cache-control", b"no-store")]
        if _is_script(exchange.request):
            exchange.respond(204, b"", headers=headers)
        else:
            exchange.respond(303, b"", headers=[*headers, (b"location", where)])

    def _refuse(self, exchange: Incoming, status: int, text: str, headers: Headers = ()) -> None:
        if _is_script(exchange.request):
            exchange.fail(Problem(status, text), headers)
        else:
            page = login_page(text)
            exchange.respond(status, page, content_type=_HTML, headers=(*_SAFE, *headers))


_ALLOWED: Final = {LOGIN: "GET or POST", LOGOUT: "POST", SESSION: "GET"}


def login_page(said: str = "") -> bytes:
    """Return the page that asks for a key, with what is `said` of the one before."""
    return _PAGE.replace("{said}", escape(said)).encode()


def _client(request: Request) -> str:
    address = (request.header(b"x-forwarded-for") or b"").rpartition(b",")[2]
    return client_at(request.client, address.decode("latin-1").strip())


def _shown_key(request: Request) -> str:
    """Return the key in a form, or in `{"key": …}`; "" for none."""
    body = request.body
    if _is_script(request):
        try:
            return msgspec.json.decode(body, type=_Shown).key.strip()
        except UNREADABLE:
            return ""
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=8)
    except ValueError:
        return ""
    return fields.get("key", [""])[-1].strip()


def _is_script(request: Request) -> bool:
    kind = request.header(b"content-type") or b""
    return kind.partition(b";")[0].strip().lower() == b"application/json"


def _is_own(request: Request) -> bool:
    """Return whether a script of a page that names its origin sent it, where none is foreign."""
    return _is_script(request) and request.header(b"origin") is not None


def is_secure(request: Request) -> bool:
    """Return whether the client's own connection has TLS: ours, or a proxy's before us."""
    return request.secure or request.header(b"x-forwarded-proto") == b"https"


def _cookie(request: Request, value: bytes, age_s: int) -> bytes:
    secure = is_secure(request)
    name, more = (SECURE_NAME, b"; Secure") if secure else (NAME, b"")
    return b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%b" % (name, value, age_s, more)


def cookie_of(request: Request) -> str:
    """Return the value of the session's cookie, "" for none, or for several: one was planted."""
    wanted = SECURE_NAME if is_secure(request) else NAME
    lines = [value for name, value in request.headers if name == b"cookie"]
    pairs = (pair.strip().partition(b"=") for line in lines for pair in line.split(b";"))
    found = [value for name, _, value in pairs if name == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def without_cookie(headers: Headers) -> Headers:
    """Return the headers without a session's cookie: it is nobody else's."""
    return [
        (name, left)
        for name, value in headers
        if (left := _left(value) if name == b"cookie" and NAME in value else value)
        or name != b"cookie"
    ]


def _left(line: bytes) -> bytes:
    pairs = (pair.strip() for pair in line.split(b";"))
    own = (NAME, SECURE_NAME)
    return b"; ".join(one for one in pairs if one.partition(b"=")[0] not in own)
