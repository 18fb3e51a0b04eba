"""One object's chunks on their way to a stream, or back."""

import asyncio
import contextlib
import hashlib

import msgspec
import nats.errors

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import Acknowledgement, JetStream, refusal
from kvmesh.transport.nats.jetstream.pull import PullConsumer, PullSpec

CHUNK_BYTES = 512 * 1024
WINDOW_CHUNKS = 8
CHUNK_TIMEOUT_S = 5.0
BUFFER_RETRY_S = 0.02
SETTLE_S = 1.0
CONSUMERS = 3
IDLE_HEARTBEATS = 2

_decoder = msgspec.json.Decoder(Acknowledgement)


class Upload:
    """Sends chunks with at most eight unacknowledged; each must be acknowledged within 5 s."""

    def __init__(self, jetstream: JetStream, subject: str) -> None:
        self._client = jetstream.connection.client
        self._subject = subject
        self._inbox = self._client.new_inbox()
        self._sent = 0
        self._acked = 0
        self._error: TransportError | None = None
        self._progress = asyncio.Event()

    async def send(self, data: bytes) -> tuple[bytes, int]:
        """Send all of `data`, return (sha256, chunks). Raises `TransportError`."""
        digest = hashlib.sha256()
        subscription = await self._client.listen(self._inbox, self._on_ack)
        try:
            for begin in range(0, len(data), CHUNK_BYTES):
                chunk = data[begin : begin + CHUNK_BYTES]
                digest.update(chunk)
                await self._wait_for_acks(self._sent - WINDOW_CHUNKS + 1)
                await self._publish(chunk)
            await self._wait_for_acks(self._sent)
        except TransportError:
            await self._wait_for_answers()
            raise
        finally:
            await self._client.unlisten(subscription)
        return digest.digest(), self._sent

    async def _publish(self, chunk: bytes) -> None:
        deadline_s = asyncio.get_running_loop().time() + CHUNK_TIMEOUT_S
        while True:
            try:
                self._client.publish_nowait(self._subject, chunk, self._inbox)
            except nats.errors.Error as error:
                late = asyncio.get_running_loop().time() > deadline_s
                if late or not isinstance(error, nats.errors.OutboundBufferLimitError):
                    raise TransportError(f"{self._subject}: {error}") from error
                await asyncio.sleep(BUFFER_RETRY_S)
            else:
                self._sent += 1
                return

    async def _wait_for_acks(self, count: int) -> None:
        while self._acked < count and self._error is None:
            self._progress.clear()
            try:
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    await self._progress.wait()
            except TimeoutError as error:
                raise TransportError(
                    f"{self._subject}: no ack in {CHUNK_TIMEOUT_S:g} s, "
                    f"{self._acked} of {self._sent} chunks stored"
                ) from error
        if self._error is not None:
            raise self._error

    async def _wait_for_answers(self) -> None:
        """Let the server decide on every chunk sent, so that a purge after this finds them all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while self._acked < self._sent:
                    self._progress.clear()
                    await self._progress.wait()

    def _on_ack(self, _subject: str, _reply: bytes, data: bytes, headers: bytes | None) -> None:
        try:
            ack = Acknowledgement() if headers else _decoder.decode(data)
        except UNREADABLE as error:
            self._error = TransportError(f"{self._subject}: unreadable ack: {error}")
        else:
            if headers:
                self._error = TransportError(f"{self._subject}: it is not stored, no such bucket")
            elif ack.error is not None:
                self._error = refusal(self._subject, ack.error)
        self._acked += 1
        self._progress.set()


class Download:
    """Receives chunks with at most eight under way; the next must come within 5 s."""

    def __init__(self, jetstream: JetStream, stream: str, subject: str, where: str) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._where = where
        self._sequence = 0
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._broken = ""
        self._idle = 0
        self._progress = asyncio.Event()

    def on_message(self, sequence: int, subject: str, data: bytes, stored_ns: int) -> None:
        """Take one chunk, of the one subject, whenever it was stored."""
        del subject, stored_ns
        self._sequence = sequence
        self._chunks.append(data)
        self._bytes += len(data)
        self._digest.update(data)
        self._idle = 0
        self._progress.set()

    def on_idle(self, sequence: int) -> None:  # noqa: ARG002  where it stands does not matter
        """Wait on, once: a follower that serves this read may not have the last chunk yet."""
        self._idle += 1
        self._progress.set()

    def on_broken(self, reason: str) -> None:
        """Have the consumer replaced; reading goes on behind the last chunk."""
        self._broken = reason
        self._progress.set()

    async def receive(self, chunks: int, size: int) -> tuple[bytes, bytes]:
        """Return (data, sha256) of that many chunks, of `size` bytes together.

        Raises `TransportError`, as soon as there are more; never hangs.
        """
        for _ in range(CONSUMERS):
            if len(self._chunks) >= chunks:
                break
            self._broken = ""
            spec = PullSpec(
                stream=self._stream,
                first_sequence=self._sequence + 1,
                subject=self._subject,
                window=WINDOW_CHUNKS,
            )
            consumer = PullConsumer(self._jetstream, spec, self)
            await consumer.open()
            try:
                await self._wait_for_chunks(chunks, size)
            finally:
                await consumer.close()
        if len(self._chunks) < chunks:
            raise TransportError(f"{self._where}: {self._broken}, {CONSUMERS} times")
        return b"".join(self._chunks), self._digest.digest()

    async def _wait_for_chunks(self, chunks: int, size: int) -> None:
        while len(self._chunks) < chunks and not self._broken:
            if self._bytes > size:
                raise TransportError(f"{self._where} is damaged: more than {size} bytes are there")
            if self._idle >= IDLE_HEARTBEATS:
                raise TransportError(
                    f"{self._where} is damaged: {len(self._chunks)} of {chunks} chunks are there"
                )
            self._progress.clear()
            try:
                async with asyncio.timeout(CHUNK_TIMEOUT_S):
                    await self._progress.wait()
            except TimeoutError as error:
                raise TransportError(
                    f"{self._where}: {len(self._chunks)} of {chunks} chunks, "
                    f"then nothing for {CHUNK_TIMEOUT_S:g} s"
                ) from error
