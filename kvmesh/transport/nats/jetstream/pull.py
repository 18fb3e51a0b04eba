"""One server-side consumer, pulled without pause: the window is the bounded mailbox.

Nothing is acknowledged and nothing kept on the server: the consumer is an ephemeral one in memory,
good until the first doubt. Whoever uses it makes a new one from its own position.
"""

import asyncio
import contextlib
import uuid
from typing import Protocol

import msgspec
import nats.errors

from kvmesh.tasks import near
from kvmesh.transport.nats.jetstream.api import NANOSECONDS, Ignored, JetStream

HEARTBEAT_S = 1.0
MISSED_HEARTBEATS_S = 2.2
LATE_TIMER_S = 0.5
PULL_EXPIRES_S = 30.0
INACTIVE_S = 15.0
PULL_BYTES = 4 * 1024**2
OPEN_TIMEOUT_S = 3.0

HEARTBEAT, REQUEST_TIMEOUT, CONFLICT = "100", "408", "409"
PULL_ENDS = ("message size exceeds maxbytes", "batch completed")
"""A pull that has a bound in bytes ends with one of these, and says what it did not deliver."""


class PullSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to deliver. `window` is how many messages may be under way, 8 MiB at most."""

    stream: str
    first_sequence: int = 1
    subject: str = ""
    window: int = 512


class PullListener(Protocol):
    """Where a consumer delivers; calls come in stream order on the event loop."""

    def on_message(self, sequence: int, subject: str, data: bytes, stored_ns: int) -> None:
        """Take the next message, stored at `stored_ns` by the server's clock, ns since 1970."""
        ...

    def on_idle(self, sequence: int) -> None:
        """Learn that the consumer stands at stream sequence `sequence` and has nothing to send."""
        ...

    def on_broken(self, reason: str) -> None:
        """Learn that nothing more will come from this consumer. Called at most once."""
        ...


class PullConsumer:
    """A named ephemeral pull consumer: no acks, one replica, memory, heartbeat 1 s.

    Two pulls, of half the window each, are under way. They are bounded in bytes, too: the server
    drops a client that leaves 64 MiB unread, and 512 dumps of a cache would be more.

    Broken by: two missed heartbeats, any final status, a hole in the consumer's own numbering, a
    full outbound buffer. After that it is silent.
    """

    def __init__(self, jetstream: JetStream, spec: PullSpec, listener: PullListener) -> None:
        self.name = f"kvmesh-{uuid.uuid4().hex}"
        self._jetstream = jetstream
        self._client = jetstream.connection.client
        self._spec = spec
        self._listener = listener
        self._inbox = self._client.new_inbox()
        self._next_subject = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{self.name}"
        self._subscription = 0
        self._expected = 1
        self._requested = 0
        self._batch = max(spec.window // 2, 1)
        self._live = False
        self._received_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Make the consumer and start pulling. Raises `TransportError`."""
        self._subscription = await self._client.listen(self._inbox, self._on_wire)
        try:
            await self._create()
        except BaseException:
            await self._client.unlisten(self._subscription)
            raise
        self._live = True
        self._received_s = asyncio.get_running_loop().time()
        self._watch()
        self._pull()

    async def close(self) -> None:
        """Stop delivering and delete the consumer; the server forgets it anyway after 15 s."""
        self._live = False
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._client.unlisten(self._subscription)
            subject = f"$JS.API.CONSUMER.DELETE.{self._spec.stream}.{self.name}"
            self._client.publish_nowait(subject, b"")

    async def _create(self) -> None:
        spec = self._spec
        config = {
            "name": self.name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": spec.first_sequence,
            "ack_policy": "none",
            "max_deliver": -1,
            "replay_policy": "instant",
            "num_replicas": 1,
            "mem_storage": True,
            "inactive_threshold": int(INACTIVE_S * NANOSECONDS),
        }
        operation = f"CONSUMER.CREATE.{spec.stream}.{self.name}"
        if spec.subject:
            config["filter_subject"] = spec.subject
            operation += f".{spec.subject}"
        body = {"stream_name": spec.stream, "config": config, "action": "create"}
        await self._jetstream.call(operation, body, Ignored, timeout_s=OPEN_TIMEOUT_S)

    def _pull(self) -> None:
        """Ask for as much as the window has room for, in pulls of half the window."""
        body = (
            f'{{"batch":{self._batch},"max_bytes":{PULL_BYTES},'
            f'"expires":{int(PULL_EXPIRES_S * NANOSECONDS)},'
            f'"idle_heartbeat":{int(HEARTBEAT_S * NANOSECONDS)}}}'
        ).encode()
        while self._live and self._requested + self._batch <= self._spec.window:
            try:
                self._client.publish_nowait(self._next_subject, body, self._inbox)
            except nats.errors.Error as error:
                self._break(f"cannot pull: {error}")
                return
            self._requested += self._batch

    def _on_wire(self, subject: str, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if not self._live:
            return
        self._received_s = asyncio.get_running_loop().time()
        if subject == self._inbox:
            if headers:
                self._on_status(headers)
            return
        # "$JS.ACK.stream.consumer.delivered.sseq.cseq.time.pending", or with a domain and an
        # account hash in front of the stream.
        tokens = reply.split(b".")
        at = 5 if len(tokens) == 9 else 7  # noqa: PLR2004  counted above
        if int(tokens[at + 1]) != self._expected:
            self._break(f"delivery {self._expected} lost, got {tokens[at + 1].decode()}")
            return
        self._expected += 1
        self._requested -= 1
        if self._requested <= self._spec.window // 2:
            self._pull()
        self._listener.on_message(int(tokens[at]), subject, data, int(tokens[at + 2]))

    def _on_status(self, block: bytes) -> None:
        status, text, headers = parse_status(block)
        if status == HEARTBEAT:
            self._on_heartbeat(headers)
        elif status == REQUEST_TIMEOUT or (status == CONFLICT and text.lower() in PULL_ENDS):
            left = int(headers.get("nats-pending-messages", 0))
            if status == CONFLICT and left == self._batch:
                self._break(f"a message is larger than {PULL_BYTES} bytes")
                return
            self._requested -= left
            self._pull()
        else:
            self._break(f"{status} {text}")

    def _on_heartbeat(self, headers: dict[str, str]) -> None:
        delivered = int(headers.get("nats-last-consumer", self._expected - 1))
        if delivered >= self._expected:
            self._break(f"deliveries {self._expected}..{delivered} lost")
        elif delivered == self._expected - 1 and "nats-last-stream" in headers:
            self._listener.on_idle(int(headers["nats-last-stream"]))

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + near(HEARTBEAT_S / 2)

        def check() -> None:
            if not self._live:
                return
            now = loop.time()
            if now - due_s > LATE_TIMER_S:
                # This process slept, so the heartbeats may wait unread in the socket.
                self._received_s = now
            if now - self._received_s > MISSED_HEARTBEATS_S:
                self._break(f"no heartbeat for {now - self._received_s:.1f} s")
            else:
                self._watch()

        self._timer = loop.call_at(due_s, check)

    def _break(self, reason: str) -> None:
        if self._live:
            self._live = False
            self._listener.on_broken(reason)


def parse_status(block: bytes) -> tuple[str, str, dict[str, str]]:
    """Return (status, description, headers with lower-case names) of a header block."""
    first, *lines = block.decode("utf-8", "replace").split("\r\n")
    _, _, status_line = first.partition(" ")
    status, _, text = status_line.partition(" ")
    pairs = (line.partition(":") for line in lines if line)
    return status, text, {name.strip().lower(): value.strip() for name, _, value in pairs}
