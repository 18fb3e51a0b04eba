"""One NATS connection: quick to notice a dead server, endless in trying again, loud about errors.

A frozen or vanished server is noticed in 3 s (pings each second), the first attempt to reconnect
follows at once, then one each 0.25 s. What was queued but not sent when the connection broke is
discarded: journal appends have their own deadline, bus messages would be stale.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
from nats.aio.msg import Msg

from kvmesh.errors import ConfigError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.nats.client import NatsClient

PING_INTERVAL_S = 1
MISSED_PINGS = 2
RECONNECT_WAIT_S = 0.25
ATTEMPT_TIMEOUT_S = 2
FLUSH_TIMEOUT_S = 1
CLOSE_TIMEOUT_S = 2.0
SAME_ERROR_QUIET_S = 10.0
NO_PENDING_LIMIT = 0

NEEDED_PAYLOAD = 512 * 1024
"""Snapshot chunks are this long, journal messages and bookings shorter."""

FATAL_ERRORS = ("authorization", "authentication", "user credentials", "certificate", "account")
"""What trying again will not cure at the first connect."""


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and how this process logs in.

    `url` may list several servers with commas. `inbox_prefix` is where answers to this process
    arrive; permissions may demand one of its own (`_INBOX_w7`). `buffer_bytes` bounds what may
    wait to be sent; `first_connect_s` how long `connect` tries before it raises.
    """

    url: str = "nats://127.0.0.1:4222"
    name: str = "kvmesh"
    creds: Path | None = None
    nkey_seed: Path | None = None
    tls_ca: Path | None = None
    inbox_prefix: str = "_INBOX"
    buffer_bytes: int = 16 * 1024**2
    first_connect_s: float = 5.0


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
    """A connection shared by the journal, bus, key-value and object stores of one process."""

    def __init__(self, options: NatsOptions) -> None:
        self.options = options
        self.client = NatsClient()
        self._listeners: list[Callable[[bool], None]] = []
        self._up = asyncio.Event()
        self._closing = False
        self._errors = 0
        self._last_error = ""
        self._last_logged_s = -SAME_ERROR_QUIET_S
        self._fatal: asyncio.Future[None] | None = None
        self.shown_url = hide_password(options.url)
        self._log = get_logger(nats=self.shown_url)

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
        self._fatal = asyncio.get_running_loop().create_future()
        try:
            arguments = self._arguments()
            attempt = asyncio.ensure_future(self.client.connect(**arguments))
            await asyncio.wait(
                {attempt, self._fatal},
                timeout=self.options.first_connect_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if attempt.done():
                await attempt
            else:
                await self._give_up(attempt)
        except ImportError as error:
            raise ConfigError(
                f"logging in with a key needs it: pip install {error.name}"
            ) from error
        except (nats.errors.Error, OSError, ValueError) as error:
            raise ConfigError(f"NATS at {self.shown_url}: {error}") from error
        finally:
            self._fatal.cancel()
            self._fatal = None
        if self.client.max_payload < NEEDED_PAYLOAD:
            await self._shut()
            raise ConfigError(
                f"NATS at {self.shown_url} takes messages of {self.client.max_payload} bytes at "
                f"most: set max_payload to {NEEDED_PAYLOAD} or more in its configuration"
            )
        self._set_up(up=True)
        self._log.info("nats connected", server=self._server())

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
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

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
                f"{subject}: nobody listens at {self.shown_url}; for $JS subjects JetStream is "
                "off or has no leader: start nats-server with -js"
            ) from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
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
        for path in (options.creds, options.nkey_seed, options.tls_ca):
            if path is not None and not path.is_file():
                raise ConfigError(f"{path}: no such file, needed to log in to {self.shown_url}")
        if options.tls_ca is not None:
            arguments["tls"] = ssl.create_default_context(cafile=str(options.tls_ca))
        if options.creds is not None:
            arguments["user_credentials"] = str(options.creds)
        if options.nkey_seed is not None:
            arguments["nkeys_seed"] = str(options.nkey_seed)
        return arguments

    async def _give_up(self, attempt: asyncio.Future[None]) -> None:
        attempt.cancel()
        await asyncio.wait({attempt}, timeout=CLOSE_TIMEOUT_S)
        await self._shut()
        raise TransportError(
            f"cannot connect to NATS at {self.shown_url}: {self._last_error or 'no answer'}; "
            "start it (nats-server -js, or kvmesh up) or name it with --nats-url"
        )

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
        if text != self._last_error or now - self._last_logged_s > SAME_ERROR_QUIET_S:
            self._last_logged_s = now
            self._log.warning("nats error", error=text, count=self._errors)
        self._last_error = text
        fatal = self._fatal
        if fatal is not None and not fatal.done() and is_fatal(text):
            fatal.set_result(None)

    async def _on_disconnected(self) -> None:
        self.client.discard_unsent()
        if not self._closing:
            self._log.warning("nats disconnected", error=self.client.loss)
        self._set_up(up=False)

    async def _on_reconnected(self) -> None:
        self._log.info("nats reconnected", server=self._server())
        self._last_error = ""
        self._set_up(up=True)


def is_fatal(error: str) -> bool:
    """Return whether the first connect should give up at once: a login that will not improve."""
    lower = error.lower()
    return any(word in lower for word in FATAL_ERRORS)


def hide_password(urls: str) -> str:
    """Return the server list without the users and passwords in it, for logs and errors."""
    return ",".join(
        f"{scheme}{separator}{rest.rpartition('@')[2]}"
        for scheme, separator, rest in (url.strip().rpartition("://") for url in urls.split(","))
    )
