"""Reads journal and heartbeats beside the routers: is all stored that a sidecar believes to be?"""

import contextlib
import time
from datetime import datetime

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, last_token
from kvmesh.core.blocks.events import decode_batch
from kvmesh.errors import CodecError
from kvmesh.ports import Record, StreamState
from kvmesh.transport.nats.jetstream.api import MESSAGE_NOT_FOUND, ApiError, JetStream
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.chaos.mesh import BUCKET

Incarnation = tuple[str, int]
CLOCKS_NS = 2_000_000
"""How far two readings of the machine's one clock may be apart: they are rounded, and slewed."""


class Claim(msgspec.Struct, frozen=True):
    """A sidecar said at `heard_ns` (since 1970) that all its events up to `last` are stored."""

    key: Incarnation
    last: int
    heard_ns: int


class _StoredAt(msgspec.Struct, frozen=True):
    time: datetime


class _MessageTime(msgspec.Struct, frozen=True):
    message: _StoredAt


class Witness:
    """`stored` is the end of each incarnation's unbroken run of events; `confirmed` its claim.

    A witness that comes late, the beginning being purged, counts from the first event it sees.
    What is claimed before it was read here may have been stored all the same: then the server's
    time of the record that completes it decides.
    """

    def __init__(self) -> None:
        self.position = 0
        self.stored: dict[Incarnation, int] = {}
        self.confirmed: dict[Incarnation, int] = {}
        self.strange: list[str] = []
        self.events = 0
        self._ahead: dict[Incarnation, list[tuple[int, int]]] = {}
        self._late = False
        self._claims: list[Claim] = []
        self._suspects: list[tuple[Claim, int]] = []
        self._stack = contextlib.AsyncExitStack()

    async def start(self, url: str) -> None:
        subjects = Subjects("kvmesh", BUCKET)
        connection = NatsConnection(NatsOptions(url=url, name="witness"))
        await connection.connect()
        self._stack.push_async_callback(connection.close)
        self._jetstream = JetStream(connection)
        self._stream = subjects.stream()
        options = JournalOptions(stream=subjects.stream(), subjects=(subjects.events(),))
        journal = NatsJournal(connection, options)
        self._stack.push_async_callback((await journal.tail(0, "", self)).close)
        subscription = await NatsBus(connection).subscribe(subjects.heartbeats(), self._on_beat)
        self._stack.push_async_callback(subscription.close)

    async def close(self) -> None:
        await self._stack.aclose()

    def differences(self) -> list[str]:
        """Say which events a sidecar took for stored that are not in the journal."""
        found = list(self.strange)
        for (worker, epoch), last in self.confirmed.items():
            stored = self.stored.get((worker, epoch), 0)
            if stored < last:
                found.append(
                    f"{worker} (epoch {epoch}) holds events up to {last} for acknowledged, "
                    f"the journal has them up to {stored}"
                )
        return found

    async def judge_claims(self) -> None:
        """Note as strange what was claimed before it was stored. Raises `TransportError`."""
        while self._suspects:
            claim, sequence = self._suspects[-1]
            stored_ns = await self._stored_ns(sequence)
            self._suspects.pop()
            if stored_ns is not None and claim.heard_ns + CLOCKS_NS < stored_ns:
                early_ms = (stored_ns - claim.heard_ns) / 1e6
                self.strange.append(
                    f"{claim.key} held events up to {claim.last} for acknowledged {early_ms:.1f} ms"
                    f" before record {sequence} was stored"
                )

    async def _stored_ns(self, sequence: int) -> int | None:
        """Return when a record was stored, ns since 1970; None when it is purged."""
        try:
            answer = await self._jetstream.call(
                f"STREAM.MSG.GET.{self._stream}", {"seq": sequence}, _MessageTime
            )
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        return int(answer.message.time.timestamp() * 1e6) * 1000

    def on_record(self, record: Record) -> None:
        self.position = record.sequence
        try:
            batch = decode_batch(record.data)
        except CodecError as error:
            self.strange.append(f"record {record.sequence}: {error}")
            return
        self.events += len(batch.events)
        key = last_token(record.subject), batch.epoch
        runs = self._ahead.setdefault(key, [])
        if self._late and key not in self.stored:
            self.stored[key] = before = batch.first_seq - 1
            # When those were stored is not known any more.
            self._claims = [one for one in self._claims if one.key != key or one.last > before]
        runs.append((batch.first_seq, batch.first_seq + len(batch.events) - 1))
        end = self.stored.get(key, 0)
        while fitting := [run for run in runs if run[0] <= end + 1]:
            for run in fitting:
                runs.remove(run)
                end = max(end, run[1])
        self.stored[key] = end
        self._settle(key, end, record.sequence)

    def _settle(self, key: Incarnation, end: int, sequence: int) -> None:
        """Suspect the claims that this record makes true."""
        true = [one for one in self._claims if one.key == key and one.last <= end]
        for claim in true:
            self._claims.remove(claim)
            self._suspects.append((claim, sequence))

    def on_gap(self, first: int, last: int) -> None:
        if first > 1:
            self.strange.append(f"records {first}..{last} were purged before everybody read them")
        self._late = self._late or first == 1
        self.position = last

    def on_recreated(self, state: StreamState) -> None:
        self.strange.append(f"the stream was remade: {state}")
        self.position = 0

    def on_caught_up(self, sequence: int) -> None:
        assert sequence <= self.position

    def _on_beat(self, subject: str, data: bytes) -> None:
        del subject
        beat = msgspec.msgpack.decode(data, type=WorkerHeartbeat)
        key = beat.worker, beat.epoch
        self.confirmed[key] = max(beat.last_seq, self.confirmed.get(key, 0))
        if beat.last_seq > self.stored.get(key, 0):
            self._claims.append(Claim(key, beat.last_seq, time.time_ns()))
