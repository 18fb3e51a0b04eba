"""Bytes of one client connection in, whole requests out; strict where request smuggling starts.

What comes whole and is like most is taken in one compiled pass (kvmesh/native/wire/take.c), which
leaves all else to llhttp. What that leaves to its user is done here: Host, transfer codings,
versions, sizes.
Source: RFC 9112; what llhttp refuses by itself is pinned in tests/unit/transport/http.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NoReturn

import httptools

from kvmesh._native import take_request
from kvmesh.core.prompts.json_size import JsonSize
from kvmesh.transport.http.server.arriving_body import ArrivingBody
from kvmesh.transport.http.server.limits import COUNT_ABOVE, BodyBudget, HttpLimits
from kvmesh.transport.http.server.refusals import (
    body_too_long,
    framing_too_long,
    head_too_large,
    why_too_much,
)
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import (
    EAGER_HEAD_BYTES,
    MAX_FRAMING_BYTES,
    Header,
    whole_lines,
)
from kvmesh.transport.http.wire.problem import Problem

_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
_CHECKED: Final = frozenset({b"host", b"transfer-encoding", b"content-length", b"expect"})
_FRAMING: Final = frozenset({b"transfer-encoding", b"content-length"})
_MOST_TAKEN_HEAD: Final = 16 * 1024
"""Bytes of a head that is looked at before it is known whether the request is whole."""

_MEMORY_FULL: Final = Problem(
    503, "too many large requests at once", code="too_many_bodies", retry_after_s=1
)

Screen = Callable[[Request], Problem | None]
"""Looks at a head whose body is still to come; returns why it is not wanted."""


class Phase(Enum):
    """Where the reader is: between requests, in a head, in a body, or past a fatal error."""

    IDLE = 0
    HEAD = 1
    BODY = 2
    BROKEN = 3


IDLE: Final = Phase.IDLE
HEAD: Final = Phase.HEAD
BODY: Final = Phase.BODY
BROKEN: Final = Phase.BROKEN
"""Looking a member up in its class costs 40 ns, a module's name 5, and this is done per read."""


class _Rejected(Exception):  # noqa: N818  never leaves this module: it stops llhttp
    """The request in the reader is refused; `RequestReader._rejected` says why."""


class RequestReader:
    """The parser of one connection.

    After each `feed`: `ready` holds the whole requests so far, a `Problem` last if the connection
    is past saving (then `phase` is BROKEN and all further bytes are ignored). `wants_continue` is
    set once when a client waits for "100 Continue". `body_bytes` counts the body now arriving;
    `crowded`: it comes in so many pieces that others should have a turn before the next are read.
    llhttp's parser is made when a request begins (0.25 us) and dropped when it is whole.
    """

    __slots__ = (
        "_arrived_bytes", "_body", "_budget", "_charged", "_closing", "_framing", "_head_bytes",
        "_headers", "_http_1_0", "_keep_alive", "_limits", "_line", "_long", "_method",
        "_most_head", "_most_taken", "_parser", "_rejected", "_replaying", "_screen", "_target",
        "_upgrading", "body_bytes", "crowded", "phase", "ready", "wants_continue",
    )  # fmt: skip

    def __init__(
        self, limits: HttpLimits, budget: BodyBudget | None = None, screen: Screen | None = None
    ) -> None:
        self._limits = limits
        self._screen = screen
        self._budget = budget or BodyBudget(limits.max_total_body_bytes)
        self._charged = 0
        self._parser: httptools.HttpRequestParser | None = None
        self.ready: list[Request | Problem] = []
        self.phase = IDLE
        self.wants_continue = False
        self.body_bytes = 0
        self._rejected: Problem | None = None
        # What `screen` may want to see before its body comes is parsed piece by piece.
        self._most_taken = limits.max_body_bytes
        if screen is not None:
            self._most_taken = min(COUNT_ABOVE, self._most_taken)
        self._most_head = min(limits.max_header_bytes, _MOST_TAKEN_HEAD)
        self._closing = False
        self._upgrading = False
        self._replaying = False
        self._http_1_0 = False
        self._keep_alive = True
        self._method = ""
        self._head_bytes = self._arrived_bytes = 0
        self._target = b""
        self._headers: list[Header] = []
        self._line: bytearray | None = None
        self._framing: list[Header] = []
        self._body = b""
        self._long: ArrivingBody | None = None
        self.crowded = False

    def close(self) -> None:
        """Break the reference cycle with the C parser, so that no garbage collection is needed."""
        self._parser = None
        self._fail(None)

    def take(self, data: bytes) -> Request | None:
        """Take `data` if it is one whole request such as most are, and return it; else None, and
        `data` is to be fed.
        """
        if self.phase is not IDLE or self._closing:
            return None
        budget, limits = self._budget, self._limits
        room = min(self._most_taken, budget.limit - budget.used)
        found = take_request(
            data, self._most_head, limits.max_target_bytes, limits.max_headers, room
        )
        if found is None:
            return None
        method, target, body, path, query, head = found
        request = Request(method, target, None, body, path, query, head, budget)
        size = len(body)
        if size > COUNT_ABOVE and not self._counts(request):
            return None
        budget.used += size
        return request

    def feed(self, data: bytes) -> None:
        """Take the next bytes; never raises."""
        phase = self.phase
        if len(self.ready) < self._limits.max_pipelined and (request := self.take(data)):
            self.ready.append(request)
            return
        if phase is not BROKEN and not self._closing:
            before, body_bytes, size = len(self.ready), self.body_bytes, len(data)
            if phase is HEAD and self._arrived_bytes > EAGER_HEAD_BYTES:
                self._line, data = whole_lines(self._line, data)
            self._parse(data)
            if self.phase is HEAD:
                self._count_head(size, fresh=len(self.ready) > before)
            elif phase is BODY and self.phase is BODY and self.body_bytes == body_bytes:
                self._count_framing(size)
            elif self._long is not None:
                self.crowded = self._long.crowded()
                if (problem := self._why_too_much(self._long)) is not None:
                    self._fail(problem)

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._fail(self._problem_of(error))
        if self.phase is IDLE:
            self._parser = None

    def _count_head(self, size: int, *, fresh: bool) -> None:
        """Bound a head that is still arriving: llhttp keeps one long header to itself."""
        self._arrived_bytes = 0 if fresh else self._arrived_bytes + size
        if self._arrived_bytes > self._limits.max_header_bytes + self._limits.max_target_bytes:
            self._fail(head_too_large(self._limits))

    def _count_framing(self, size: int) -> None:
        """Bound what comes of a body without content: llhttp keeps one long trailer, too."""
        self._arrived_bytes += size
        if self._arrived_bytes > MAX_FRAMING_BYTES:
            self._fail(framing_too_long())

    def _problem_of(self, error: Exception) -> Problem | None:
        """Return what to answer; None for bytes behind a last request: they mean nothing."""
        if self._rejected is not None:
            return self._rejected
        if self._closing:
            return None
        return Problem(400, f"malformed HTTP request: {error}", code="malformed_request")

    def _fail(self, problem: Problem | None) -> None:
        self.phase = BROKEN
        self._line = None
        self._headers = []
        self._body = b""
        self._long = None
        self._budget.used -= self._charged
        self._charged = 0
        if problem is not None:
            self.ready.append(problem)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 after an offer to upgrade, e.g. the h2c of Java's HttpClient.

        llhttp stops behind the head and would lose the body: a fresh parser gets a head that
        frames the body alike.
        """
        framing = b"".join([b"%b: %b\r\n" % header for header in self._framing])
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parse(b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest))

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._replaying:
            return
        if len(self.ready) >= self._limits.max_pipelined:
            self._reject(Problem(400, "too many pipelined requests", code="pipelining"))
        self.phase = HEAD
        self._target = b""
        self._head_bytes = self._arrived_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        if not self._replaying:
            self._target += url
            if len(self._target) > self._limits.max_target_bytes:
                self._reject(Problem(414, "request target is too long", code="uri_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; those behind a chunked body (trailers) are counted and dropped."""
        if self._replaying:
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.max_header_bytes:
            self._reject(head_too_large(self._limits))
        if self.phase is HEAD:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head as a whole."""
        if self._replaying:
            self._replaying = False
            return
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        if version != "1.1" and version != "1.0":  # noqa: PLR1714  a set costs a hash
            self._reject(Problem(505, f"HTTP/{version} is not served", code="http_version"))
        self._http_1_0 = version == "1.0"
        self._keep_alive = parser.should_keep_alive()
        self._method = parser.get_method().decode()
        self._take_headers()
        self._target = self._origin_form(self._target)
        if self._screen is not None and self._is_long():
            head = Request(self._method, self._target, self._headers)
            if (problem := self._screen(head)) is not None:
                self._reject(problem)
        self._upgrading = parser.should_upgrade()
        self.phase = BODY
        self.body_bytes = self._arrived_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self.body_bytes += len(body)
        self._arrived_bytes = 0
        self._check_length(self.body_bytes)
        self._charged += len(body)
        self._budget.used += len(body)
        if self._budget.exceeded:
            self._reject(_MEMORY_FULL)
        if self._long is not None:
            self._long.add(body)
        elif self._body or len(body) > COUNT_ABOVE:
            self._long = ArrivingBody(self._body or body)
            if self._body:
                self._long.add(body)
        else:
            self._body = body

    def on_message_complete(self) -> None:
        """Hand the request over."""
        if self._upgrading:
            self._upgrading = False
            return
        body, long = self._body, self._long
        items = 0
        if long is not None:
            if (problem := self._why_too_much(long)) is not None:
                self._reject(problem)
            items, body = long.count().items, long.take()
            self._long = None
        request = Request(self._method, self._target, self._headers, body)
        request.items = items
        request.http_1_0 = self._http_1_0
        request.keep_alive = self._keep_alive
        request.budget = self._budget
        self._charged = 0
        self.ready.append(request)
        self._body = b""
        self._headers = []
        self._closing = not self._keep_alive
        self.wants_continue = False
        self.phase = IDLE

    # checks

    def _take_headers(self) -> None:
        if len(self._headers) > self._limits.max_headers:
            self._reject(head_too_large(self._limits))
        headers = [(name.lower(), value.rstrip(b" \t")) for name, value in self._headers]
        checked = [header for header in headers if header[0] in _CHECKED]
        self._framing = [header for header in checked if header[0] in _FRAMING]
        self._headers = [header for header in headers if header[0] not in _FRAMING]
        hosts = 0
        for name, value in checked:
            if name == b"host":
                hosts += 1
                if not _HOST.fullmatch(value):
                    self._reject(Problem(400, f"Host {value!r} is malformed", code="bad_host"))
            elif name == b"content-length":
                self._check_length(int(value))
            elif name == b"expect":
                self._check_expect(value)
            else:
                self._check_coding(value)
        if hosts > 1 or (hosts == 0 and not self._http_1_0):
            self._reject(Problem(400, f"{hosts} Host headers: send exactly one", code="bad_host"))

    def _is_long(self) -> bool:
        """Return whether the body may be longer than what comes with its head."""
        return any(
            name == b"transfer-encoding" or int(value) > COUNT_ABOVE
            for name, value in self._framing
        )

    def _check_expect(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            self._reject(Problem(417, f"cannot meet Expect: {value!r}", code="expectation"))
        self.wants_continue = not self._http_1_0

    def _check_coding(self, value: bytes) -> None:
        """Only `chunked` is taken: a coding that one hop reads and the next does not smuggles."""
        if self._http_1_0:
            self._reject(Problem(400, "Transfer-Encoding in HTTP/1.0", code="malformed_request"))
        if value.lower() != b"chunked":
            self._reject(Problem(501, f"Transfer-Encoding {value!r} is not served", code="coding"))

    def _origin_form(self, target: bytes) -> bytes:
        """Return the target as path and query; refuse what has neither."""
        if self._method == "CONNECT":
            self._reject(Problem(405, "CONNECT is not served", code="method_not_allowed"))
        if not target.startswith(b"/") and (absolute := _ABSOLUTE.match(target)):
            target = target[absolute.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
        if not target.startswith(b"/") and not (target == b"*" and self._method == "OPTIONS"):
            self._reject(Problem(400, f"target {target!r} is not a path", code="bad_target"))
        if b"#" in target:
            self._reject(Problem(400, "fragment in request target", code="bad_target"))
        return target

    def _why_too_much(self, body: ArrivingBody) -> Problem | None:
        """Return the answer to a large body that holds too much, before anything is made of it."""
        if self.body_bytes <= COUNT_ABOVE:
            return None
        return why_too_much(body.count(), self._limits)

    def _counts(self, request: Request) -> bool:
        """Count a whole body; return whether it may hold so much."""
        size = JsonSize()
        size.feed(request.body)
        request.items = size.items
        return why_too_much(size, self._limits) is None

    def _check_length(self, length: int) -> None:
        if length > self._limits.max_body_bytes:
            self._reject(body_too_long(self._limits))

    def _reject(self, problem: Problem) -> NoReturn:
        self._rejected = problem
        raise _Rejected
