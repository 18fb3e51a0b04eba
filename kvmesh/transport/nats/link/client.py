"""nats-py, repaired where it loses messages or its connection. The only module that overrides it.

What nats-py 2.16 does, and what this client does instead:

- A frozen server with unsent bytes: it waits for the socket to close, for ever. Here a dead
  connection is aborted (`AbortingTransport`), and the kernel gives up on unacknowledged bytes.
- Any `-ERR` but two closes the client for good. Here none does.
- A late PONG of a cancelled flush ends its read loop. Here a flush is never cancelled.
- A flush is answered before what was queued has been sent. Here it is answered after.
- A subscription drops messages over its pending limit, and `fetch` makes a task per message. Here
  `listen` calls back straight from the socket (`FrameReader`): nothing is queued, so nothing can be
  dropped, and at most a read of the socket (256 KiB) is handled per turn of the event loop.
- What is published wakes a task that writes it. Here a callback of the event loop writes it.

`PRIVATE` names what of nats-py is used that it does not document; nothing else of kvmesh uses any.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import STALE_CONNECTION

from kvmesh.tasks import report
from kvmesh.transport.nats.link.abort import AbortingTransport
from kvmesh.transport.nats.trust.signing import Signing

PRIVATE: Final = {
    "_process_msg": "overridden: each message, before it is queued for a subscription",
    "_process_err": "overridden: each `-ERR`, which must not close the client",
    "_process_op_err": "overridden: why a connection is given up, for the log",
    "_transport": "set: the transport to connect with; there is no option for it",
    "_flush_pending": "overridden: writes without waking a task; called before a flush's PING",
    "_pending": "written, or emptied: what was queued and not sent is stale after an outage",
    "_pending_data_size": "set to 0 with it",
    "_auth_configured": "set: a login by callbacks of one's own, else it sends none",
    "_public_nkey": "set: whose nkey logs in; there is no option for it",
    "_id": "read: a subscription's number, which messages come with",
}
"""Private names of nats-py's `Client` and `Subscription`, and what for. A new minor version of
nats-py may change each, so pyproject.toml pins it and `make next-nats` tries the next.
"""

CONTROL_LINE_BYTES = 512
"""At most what goes with a message: its command, its signature."""

FLUSH_TIMEOUT_S = 10
"""Longer than it takes to give up a connection: then its flushes are forgotten, not cancelled."""

Deliver = Callable[[str, bytes, bytes, bytes | None], None]
"""Takes (subject, reply, payload, raw header block or None)."""


class NatsClient(Client):
    """A nats-py client that never gives up, never hangs in a dead socket, never drops unseen.

    `loss` says why the connection was last given up. All that leaves and comes passes `signing`:
    whoever publishes or listens knows nothing of it.
    """

    def __init__(self, signing: Signing) -> None:
        super().__init__()
        self.loss = ""
        self._signing = signing
        self._listeners: dict[int, Deliver] = {}
        self._subscribed: dict[int, Subscription] = {}
        self._room = 0
        self._is_write_due = False
        self._on_error: Callable[[Exception], Any] | None = None
        self._aborting = AbortingTransport(self._take)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send one message, signed where its subject asks for it."""
        signer = self._signing.signer
        if signer is not None:
            headers = signer.sign(subject, payload, headers)
        await super().publish(subject, payload, reply, headers)

    def publish_nowait(
        self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Queue one message without waiting.

        Raises `nats.errors.Error` for what cannot be sent: a bad subject, more than the server's
        `max_payload`, a closed connection, or no room left in the outbound buffer.
        """
        room = self._room - self.pending_data_size - len(subject) - len(reply)
        if not self.is_connected or len(data) + CONTROL_LINE_BYTES > room:
            raise nats.errors.OutboundBufferLimitError
        # With room in the buffer the coroutine never suspends, so one step completes it; that
        # saves the task (8 us of 10).
        step = self.publish(subject, data, reply, headers)
        try:
            step.send(None)
        except StopIteration:
            return
        step.close()

    async def listen(self, subject: str, deliver: Deliver) -> int:
        """Call `deliver` for every message on `subject`, in order, until `unlisten`."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        subscription = await self.subscribe(subject, future=never)
        number = self.number_of(subscription)
        self._subscribed[number] = subscription
        self._listeners[number] = deliver
        return number

    async def unlisten(self, number: int) -> None:
        """End what `listen` began; safe on a connection that is down or closed."""
        if self._listeners.pop(number, None) is not None:
            await self.end(self._subscribed.pop(number))

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe; safe on a connection that is down or closed."""
        if self._signing.guard is not None:
            self._signing.guard.forget(self.number_of(subscription))
        with contextlib.suppress(
            nats.errors.ConnectionClosedError,
            nats.errors.ConnectionDrainingError,
            nats.errors.BadSubscriptionError,
        ):
            await subscription.unsubscribe()

    @staticmethod
    def number_of(subscription: Subscription) -> int:
        """Return the number that its messages come with."""
        number: int = subscription._id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return number

    async def connect(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  nats-py's
        """Connect as nats-py does; `pending_size` and `error_cb` must be given.

        `nkey` is the public key that `signature_cb` signs for, where no `user_jwt_cb` names it.
        """
        self._public_nkey = options.pop("nkey", None)
        self._auth_configured = "signature_cb" in options
        self._room, self._on_error = options["pending_size"], options["error_cb"]
        if not any(str(url).startswith("ws") for url in options["servers"]):
            self._transport = self._aborting
        await super().connect(*arguments, **options)

    async def flush(self, timeout: int = FLUSH_TIMEOUT_S) -> None:  # noqa: ASYNC109  nats-py's
        """Return when the server has processed everything sent so far.

        Raises `nats.errors.Error` when the connection is closed or this takes longer.
        """
        # nats-py writes its PING past what is queued, so the answer would prove nothing.
        await self._flush_pending(force_flush=True)
        flushing = asyncio.ensure_future(super().flush(FLUSH_TIMEOUT_S))
        flushing.add_done_callback(_retrieve)
        done, _ = await asyncio.wait({flushing}, timeout=timeout)
        if not done:
            raise nats.errors.FlushTimeoutError
        flushing.result()

    def abort(self) -> None:
        """Drop the connection at once; the client reconnects unless it is closed."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]  # nats-py's

    def server_fact(self, name: str) -> str:
        """Return what the server said of itself when it was connected to; "" for nothing."""
        return str(self._aborting.server_info().get(name) or "")

    def discard_unsent(self) -> None:
        """Forget what was queued and not sent: after an outage it would arrive stale."""
        self._pending.clear()
        self._pending_data_size = 0

    async def _flush_pending(self, force_flush: bool = False) -> None:
        if not force_flush and self._is_write_due:
            return
        transport = self._transport
        if force_flush or transport is not self._aborting or not self._aborting.takes_more():
            # nats-py's task waits for the socket meanwhile, and `pending_size` bounds what waits.
            await super()._flush_pending(force_flush)
            return
        self._is_write_due = True
        asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._is_write_due = False
        if self.is_connected and self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            self._aborting.writelines(pending)

    async def _process_err(self, err_msg: str) -> None:
        # When an error is the end of a connection the server closes it, which shows as its end.
        if STALE_CONNECTION in err_msg:
            await super()._process_err(err_msg)
        elif self._on_error is not None:
            await self._on_error(nats.errors.Error(f"nats: {err_msg.strip(chr(39))}"))

    async def _process_op_err(self, e: Exception) -> None:
        self.loss = str(e) or type(e).__name__
        await super()._process_op_err(e)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        # Of a transport that is not ours all messages come this way, else those nobody listens to.
        if not self._take(sid, subject, reply, data, headers) and self._admits(
            sid, subject, data, headers
        ):
            await super()._process_msg(sid, subject, reply, data, headers)

    def _take(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> bool:
        """Deliver a message that somebody listens to; False when nobody does."""
        deliver = self._listeners.get(sid)
        if deliver is None:
            return False
        if self._admits(sid, subject, data, headers):
            self.stats["in_msgs"] += 1
            self.stats["in_bytes"] += len(data)
            try:
                # The server takes any bytes for a subject: no text must not stop a tail.
                deliver(subject.decode("utf-8", "backslashreplace"), reply, data, headers)
            except Exception as error:  # noqa: BLE001  a listener's bug must not end the read loop
                report("subscription", error, detail=f"listener on {subject!r}")
        return True

    def _admits(self, sid: int, subject: bytes, data: bytes, headers: bytes | None) -> bool:
        """Return whether a message may be delivered, by its signature."""
        guard = self._signing.guard
        if guard is None or not subject.startswith(guard.claims.raw_prefixes):
            return True
        try:
            text = subject.decode("utf-8", "backslashreplace")
            return guard.admits(sid, text, headers, data)
        except Exception as error:  # noqa: BLE001  a bug here must not end the read loop
            report("subscription", error, detail=f"guard of {subject!r}")
            return False


def _retrieve(flushing: asyncio.Future[None]) -> None:
    """Have nobody complain that the error of a late flush was not looked at."""
    if not flushing.cancelled():
        flushing.exception()
