"""One NATS connection: quick to notice a dead server, endless in trying again, loud about errors.

A frozen or vanished server is noticed in 3 s (pings each second), the first attempt to reconnect
follows at once, then one each 0.25 s. What was queued but not sent when the connection broke is
discarded: journal appends have their own deadline, bus messages would be stale.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
from nats.aio.msg import Msg

from kvmesh.errors import KvMeshError, TransportError
from kvmesh.observe import get_logger
from kvmesh.tasks import guarded
from kvmesh.transport.nats.link import login
from kvmesh.transport.nats.link.client import NatsClient
from kvmesh.transport.nats.link.troubles import Troubles
from kvmesh.transport.nats.link.waits import Waits, first_done
from kvmesh.transport.nats.trust.nkey import read_seed
from kvmesh.transport.nats.trust.signing import Signing

PING_INTERVAL_S = 1
MISSED_PINGS = 2
RECONNECT_WAIT_S = 0.25
ATTEMPT_TIMEOUT_S = 2
FLUSH_TIMEOUT_S = 1
CLOSE_TIMEOUT_S = 2.0
SAME_ERROR_QUIET_S = 10.0
NO_SERVER = (
    "start NATS (nats-server -js), or name a running server with --nats-url; a router alone takes"
    " --worker URL in its place. Until then: waiting for NATS"
)
"""For people at a terminal: the remedy comes first."""


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and how this process logs in.

    `url` may list several servers with commas. `inbox_prefix` is where answers to this process
    arrive; permissions may demand one of its own (`_INBOX_w7`). `buffer_bytes` bounds what may
    wait to be sent; `first_connect_s` how long `connect` tries before it raises. Without
    `adapts_streams` it makes streams that are missing, and leaves others' settings alone.
    `creds` is a file of credentials (JWT and seed), or of an nkey seed alone.
    What it says on subjects of `namespace` is signed with its nkey; what it hears is checked by
    the file `trust`, without one by nothing.
    """

    url: str = "nats://127.0.0.1:4222"
    name: str = "kvmesh"
    creds: Path | None = None
    tls_ca: Path | None = None
    inbox_prefix: str = "_INBOX"
    buffer_bytes: int = 16 * 1024**2
    first_connect_s: float = 5.0
    adapts_streams: bool = True
    namespace: str = "kvmesh"
    trust: Path | None = None


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Counts since the process started."""

    connected: bool
    reconnects: int
    errors: int
    in_messages: int
    out_messages: int
    in_bytes: int
    out_bytes: int


class NatsConnection:
    """A connection shared by the journal, bus, key-value and object stores of one process.

    `patient`: the process waits for its server, and `waits` says for what; `connect_patiently`.
    `troubles` is what JetStream refuses, `signing` what this process signs and believes.
    """

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.adapts_streams = options.adapts_streams
        self._listeners: list[Callable[[bool], None]] = []
        self._up = asyncio.Event()
        self._closing = False
        self._errors = 0
        self._last_error = ""
        self._denied: set[str] = set()
        self._last_logged_s = -SAME_ERROR_QUIET_S
        self._fatal: asyncio.Future[None] | None = None
        self.shown_url = login.hide_password(options.url)
        self._log = get_logger(nats=self.shown_url)
        self.signing = Signing(self._log)
        self.client = NatsClient(self.signing)
        self.patient = False
        self.waits = Waits(self._log)
        self.troubles = Troubles(self._log)

    @property
    def connected(self) -> bool:
        """Return whether messages can be sent now."""
        return self._up.is_set()

    async def connect(self) -> None:
        """Connect, trying for `first_connect_s`.

        Raises `ConfigError` for an unusable URL, key, certificate file or server setting, and
        `TransportError` naming the server and the remedy when it does not answer or refuses the
        login.
        """
        await self._connect(self.options.first_connect_s)

    async def connect_patiently(self) -> None:
        """Connect, trying until the server is there; `waits` says so meanwhile.

        Raises as `connect` what waiting will not cure: `ConfigError`, a refused login.
        """
        self.patient = True
        await self._connect(None)

    async def _connect(self, limit_s: float | None) -> None:
        self._fatal = fatal = asyncio.get_running_loop().create_future()
        attempt: asyncio.Future[None] | None = None
        try:
            options = self.options
            login.check_files(options.creds, options.tls_ca, self.shown_url)
            seed = read_seed(options.creds)
            self.signing.begin(options.namespace, seed, options.trust, serves=self.patient)
            with login.config_errors(self.shown_url):
                attempt = asyncio.ensure_future(self.client.connect(**self._arguments()))
                await first_done({attempt, fatal}, limit_s, self._wait)
                if attempt.done():
                    await attempt
                    login.check_payload(self.client.max_payload, self.shown_url)
            if not attempt.done():
                raise login.no_server(self.shown_url, self._last_error)
        except (asyncio.CancelledError, KvMeshError):
            await self._end(attempt)
            raise
        finally:
            fatal.cancel()
            self._fatal = None
        self.waits.end()
        self._set_up(up=True)
        self._log.info("nats connected", server=self._server())

    def _wait(self) -> None:
        reason = f"waiting for NATS at {self.shown_url}"
        self.waits.begin(NO_SERVER, reason, self._last_error or "no answer")

    async def close(self) -> None:
        """Send what is queued (2 s at most), then disconnect for good; safe to call twice."""
        if self._closing:
            return
        self._closing = True
        if not await self.flush():
            self.client.abort()
        self._set_up(up=False)
        await self._shut()

    async def flush(self) -> bool:
        """Return True when the server has taken everything sent so far; waits 2 s at most."""
        if not self.client.is_connected:
            return False
        try:
            await self.client.flush(FLUSH_TIMEOUT_S)
        except (nats.errors.Error, OSError, TimeoutError):
            return False
        return True

    def on_change(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener(up)` after each disconnect and reconnect; the result undoes it."""
        # nats-py stops reconnecting where its callback raises.
        guarded_listener = guarded("connection listener", listener)
        self._listeners.append(guarded_listener)

        def forget() -> None:
            if guarded_listener in self._listeners:
                self._listeners.remove(guarded_listener)

        return forget

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Msg:
        """Return the answer to `data`; while disconnected, wait for the connection first.

        Raises `TransportError` when nobody listens or no answer comes within `timeout_s`; the
        request may have been carried out all the same.
        """
        if self._closing:
            raise TransportError(f"{subject}: the connection to {self.shown_url} is closed")
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._up.wait()
            left_s = deadline_s - asyncio.get_running_loop().time()
            sent = dict(headers) if headers else None
            return await self.client.request(subject, data, timeout=left_s, headers=sent)
        except nats.errors.NoRespondersError as error:
            raise TransportError(
                f"{subject}: no responders at {self.shown_url}; for $JS subjects JetStream is "
                "off or has no leader: start nats-server with -js"
            ) from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            if subject.lower() in self._denied:
                self._denied.discard(subject.lower())
                raise TransportError(
                    f"{subject}: {self.shown_url} does not permit it to this user"
                ) from None
            state = "no answer" if self.connected else "not connected"
            raise TransportError(
                f"{subject}: {state} in {timeout_s:g} s from {self.shown_url}"
            ) from error
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"{subject} at {self.shown_url}: {error}") from error

    def statistics(self) -> ConnectionStatistics:
        """Return counts for metrics."""
        counts = self.client.stats
        return ConnectionStatistics(
            connected=self.connected,
            reconnects=counts["reconnects"],
            errors=self._errors,
            in_messages=counts["in_msgs"],
            out_messages=counts["out_msgs"],
            in_bytes=counts["in_bytes"],
            out_bytes=counts["out_bytes"],
        )

    def _arguments(self) -> dict[str, Any]:
        options = self.options
        arguments: dict[str, Any] = {
            "servers": [url.strip() for url in options.url.split(",") if url.strip()],
            "name": options.name,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": RECONNECT_WAIT_S,
            "connect_timeout": ATTEMPT_TIMEOUT_S,
            "ping_interval": PING_INTERVAL_S,
            "max_outstanding_pings": MISSED_PINGS,
            "pending_size": options.buffer_bytes,
            "flush_timeout": FLUSH_TIMEOUT_S,
            "inbox_prefix": options.inbox_prefix,
        }
        arguments |= login.login_arguments(options.creds, options.tls_ca)
        return arguments

    async def _end(self, attempt: asyncio.Future[None] | None) -> None:
        """Give an attempt up, or leave the server it reached; one that failed left nothing."""
        if attempt is None or (attempt.done() and attempt.exception() is not None):
            return
        attempt.cancel()
        await asyncio.wait({attempt}, timeout=CLOSE_TIMEOUT_S)
        await self._shut()

    async def _shut(self) -> None:
        # A frozen server must not keep the process: close waits for the socket, abort ends that.
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.client.close()
        self.client.abort()

    def _server(self) -> str:
        server = self.client.connected_url
        return f"{server.hostname}:{server.port}" if server else ""

    def _set_up(self, *, up: bool) -> None:
        if up == self._up.is_set():
            return
        if up:
            self._up.set()
        else:
            self._up.clear()
        for listener in list(self._listeners):
            listener(up)

    async def _on_error(self, error: Exception) -> None:
        self._errors += 1
        now = asyncio.get_running_loop().time()
        text = str(error) or type(error).__name__
        is_new = text != self._last_error or now - self._last_logged_s > SAME_ERROR_QUIET_S
        waiting = self.patient and self._fatal is not None
        if is_new and not waiting:
            self._last_logged_s = now
            self._log.warning("nats error", error=text, count=self._errors)
        self._last_error = text
        if denied := login.denied_subject(text):
            self._denied.add(denied)
        fatal = self._fatal
        if fatal is not None and not fatal.done() and login.is_fatal(text):
            fatal.set_result(None)

    async def _on_disconnected(self) -> None:
        self.client.discard_unsent()
        if not self._closing and self._up.is_set():
            self._log.warning("nats disconnected", error=self.client.loss)
        self._set_up(up=False)

    async def _on_reconnected(self) -> None:
        self._log.info("nats reconnected", server=self._server())
        self._last_error = ""
        self._set_up(up=True)
