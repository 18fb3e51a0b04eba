"""Shares bookings among router replicas, so that many decide as well as one."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from kvmesh.actors.kernel import Effect, Log, Message, Publish, Wake
from kvmesh.actors.messages import (
    Booked,
    BusMessage,
    Finished,
    FirstToken,
    RouterGone,
    RouterSeen,
    SharesChanged,
    Started,
    StateWanted,
    Tick,
)
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.wire import Subjects, decode, encode, last_token
from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.health.outcomes import Attempt, Verdict
from kvmesh.core.routing.booking_events import (
    MAX_HASHES,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
    StateEnds,
    encode_booking,
    join_bookings,
)
from kvmesh.core.routing.peers.peer_bookings import PeerBookings
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.loads import MOST_TOKENS, Booking
from kvmesh.errors import CodecError

_EVENT_BYTES: Final = 128
"""Of an event without its hashes, at most: two names of up to 40 bytes and numbers."""


class ReplicaSyncOptions(msgspec.Struct, frozen=True):
    """Who this replica is (`epoch` grows at each restart), and the pace. Times in seconds.

    A booking after a quiet time is sent at once, those of the next `flush_s` together; at 100 ms
    replicas already herd. Each `beat_s` a replica says how far it is, so that a lost message shows
    and its bookings' leases are renewed. A message ends after `max_events` or with the event that
    fills `max_bytes`: one is folded in a turn, at about 1 us a block that was not believed yet.
    """

    router: str
    bucket: str
    epoch: int
    namespace: str = "kvmesh"
    flush_s: float = 0.005
    beat_s: float = 1.0
    state_pause_s: float = 0.5
    max_events: int = 256
    max_bytes: int = 64 * 1024


class ReplicaSyncStatistics(msgspec.Struct, frozen=True):
    """Counters since the start. `gaps` counts messages of peers that never came, `refused` those
    and bookings for which there was no room, `untold` events that could not be encoded.
    """

    events_sent: int
    events_applied: int
    states_sent: int
    states_asked: int
    gaps: int
    garbage: int
    refused: int
    untold: int = 0


class ReplicaSync:
    """Sends this replica's bookings in numbered batches and applies the peers'.

    Messages may be lost (core NATS): a gap in a peer's numbers makes this replica ask for the
    peer's whole state. Every event is idempotent, so state and batches may overlap. A peer that
    dies or restarts takes its bookings along.
    """

    def __init__(
        self, scheduler: Scheduler, options: ReplicaSyncOptions, *, name: str = "replica_sync"
    ) -> None:
        self.name = name
        self._sequences = scheduler.sequences
        self._ledger = scheduler.ledger
        self._options = options
        self._subjects = Subjects(options.namespace, options.bucket)
        self._peers = PeerBookings(scheduler)
        self._pending: list[tuple[msgspec.Raw, int]] = []
        self._pending_bytes = 0
        self._gathering = False
        self._next_seq = 1
        self._grown: dict[str, int] = {}
        self._state_s: float | None = None
        self._asked: dict[str, float] = {}
        self._garbage = Refusals()
        self._sent = self._states_sent = self._states_asked = self._untold = 0

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case Booked(request_id):
                booking = self._sequences.bookings.get(request_id)
                return self._queue(self._placed(booking)) if booking is not None else ()
            case FirstToken(request_id):
                return self._queue(Prefilled(request_id))
            case Finished(request_id, attempt):
                self._grown.pop(request_id, None)
                return self._queue(_ended(request_id, attempt))
            case BusMessage(subject, data):
                return self._on_bus(subject, data, now)
            case Tick(kind):
                return self._on_tick(kind, now)
            case _:
                return self._on_rare(message, now)

    def known_upto(self, peer: str) -> tuple[int, int] | None:
        """Return the epoch and number up to which a peer is known completely, else None."""
        return self._peers.known_upto(peer)

    def statistics(self) -> ReplicaSyncStatistics:
        """Return the present counts."""
        peers = self._peers.statistics()
        return ReplicaSyncStatistics(
            events_sent=self._sent,
            events_applied=peers.applied,
            states_sent=self._states_sent,
            states_asked=self._states_asked,
            gaps=peers.gaps,
            garbage=self._garbage.count,
            refused=peers.refused,
            untold=self._untold,
        )

    def _queue(self, event: BookingEvent) -> Iterable[Effect]:
        if (log := self._enter(event)) is not None:
            return (log,)
        options = self._options
        if len(self._pending) >= options.max_events or self._pending_bytes >= options.max_bytes:
            return self._flush()
        return () if self._gathering else self._send_and_gather()

    def _enter(self, event: BookingEvent) -> Log | None:
        """Have an event told with the next batch; one that cannot be is left out, and logged."""
        try:
            encoded = encode_booking(event)
        except CodecError as error:
            self._untold += 1
            return Log("error", "booking is not told to other replicas", {"error": str(error)})
        self._pending.append((encoded, _size(event)))
        self._pending_bytes += _size(event)
        return None

    def _send_and_gather(self) -> Iterable[Effect]:
        self._gathering = True
        return (*self._flush(), Wake(self._options.flush_s, Tick("flush")))

    def _flush(self) -> list[Effect]:
        """Send what waits, in batches within the bounds."""
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        options, sent = self._options, list[Effect]()
        start = size = 0
        for end, (_, event_bytes) in enumerate(pending, 1):
            size += event_bytes
            if end - start == options.max_events or size >= options.max_bytes:
                sent.append(self._publish(pending[start:end]))
                start, size = end, 0
        shares = self._ledger.tell()
        if start < len(pending) or shares is not None:
            sent.append(self._publish(pending[start:], shares))
        return sent

    def _publish(
        self, events: list[tuple[msgspec.Raw, int]], shares: Shares | None = None
    ) -> Effect:
        encoded = [event for event, _ in events]
        data = join_bookings(self._options.epoch, self._next_seq, encoded, shares)
        self._next_seq += len(events)
        self._sent += len(events)
        return Publish(self._subjects.bookings(self._options.router), data)

    def _on_bus(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        peer = last_token(subject)
        try:
            if subject == self._subjects.bookings(peer):
                if peer == self._options.router:
                    return ()
                complete = self._peers.hear(peer, data, now)
                if complete is None:
                    return self._garbage.note(subject, "too many peers send bookings", now)
                return () if complete else self._ask(peer, now)
            return self._on_state_wanted(decode(data, StateWanted), now)
        except CodecError as error:
            return self._garbage.note(subject, error, now)

    def _ask(self, peer: str, now: float) -> Iterable[Effect]:
        """Ask a peer for its whole state, not too often."""
        asked_s = self._asked.get(peer)
        if asked_s is not None and now < asked_s + self._options.state_pause_s:
            return ()
        self._asked[peer] = now
        self._states_asked += 1
        wanted = StateWanted(self._options.router)
        return (Publish(self._subjects.router_control(peer), encode(wanted)),)

    def _on_state_wanted(self, wanted: StateWanted, now: float) -> Iterable[Effect]:
        """Send the whole state to everybody; several askers get one answer."""
        pause = self._options.state_pause_s / 2
        if wanted.router == self._options.router:
            return ()
        if self._state_s is not None and now < self._state_s + pause:
            return ()
        self._state_s = now
        self._states_sent += 1
        logs = [self._enter(event) for event in self._state()]
        return [*filter(None, logs), *self._flush()]

    def _state(self) -> Iterator[BookingEvent]:
        yield StateBegins()
        for booking in self._sequences.owned():
            yield self._placed(booking)
            if not booking.prefilling:
                yield Prefilled(booking.request_id)
            if booking.output_tokens:
                yield Grew(booking.request_id, booking.output_tokens)
        yield StateEnds()

    def _on_tick(self, kind: str, now: float) -> Iterable[Effect]:
        if kind == "flush":
            if self._pending or self._ledger.news:
                return self._send_and_gather()
            self._gathering = False
            return ()
        self._peers.forget_strangers(now)
        late_s = now - self._options.state_pause_s
        self._asked = {peer: asked_s for peer, asked_s in self._asked.items() if asked_s > late_s}
        own = self._sequences.owned()
        self._sequences.renew((one.request_id for one in own), now)
        for booking in self._sequences.expire(now):
            # A peer long unheard that had no news since would come back without a gap.
            self._peers.doubt(booking.owner)
        for booking in own:
            if booking.output_tokens > self._grown.get(booking.request_id, 0):
                self._grown[booking.request_id] = booking.output_tokens
                self._enter(Grew(booking.request_id, booking.output_tokens))
        effects = [*self._flush(), self._publish([], self._ledger.tell_again())]
        effects += (effect for peer in self._peers.incomplete() for effect in self._ask(peer, now))
        return (*effects, Wake(self._options.beat_s, Tick("beat")))

    def _on_rare(self, message: Message, now: float) -> Iterable[Effect]:
        match message:
            case SharesChanged():
                return () if self._gathering else self._send_and_gather()
            case Started():
                return (Wake(self._options.beat_s, Tick("beat")),)
            case RouterSeen(heartbeat, joined):
                self._peers.heard(heartbeat.router)
                return self._ask(heartbeat.router, now) if joined else ()
            case RouterGone(router):
                self._peers.remove(router)
                self._asked.pop(router, None)
                return ()
            case StateWanted():
                return self._on_state_wanted(message, now)
            case _:
                return ()

    def _placed(self, booking: Booking) -> Placed:
        """Return a booking as it was placed; what came of it follows in events of its own."""
        size = self._sequences.block_size
        end = booking.prompt_tokens + booking.output_tokens
        grown_blocks = -(-end // size) + (-booking.prompt_tokens // size)
        expected = booking.expected_blocks + grown_blocks + booking.foreseen_blocks
        own = booking.hashes
        hashes = own.upto(MAX_HASHES)[:MAX_HASHES] if own and not isinstance(own, bytes) else ()
        # Peers of this version read each 16th block's hash; beyond block 256 a booking keeps fewer.
        keys = hashes[15::16] if hashes else booking.keys[:16]
        return Placed(
            request_id=booking.request_id,
            worker=booking.worker,
            prompt_tokens=booking.prompt_tokens,
            uncached_tokens=booking.uncached_tokens,
            expected_blocks=min(expected, MOST_TOKENS),
            keys=pack_hashes(keys),
            streams=booking.streams,
            hashes=pack_hashes(hashes),
            turn=booking.turn,
        )


def _ended(request_id: str, attempt: Attempt) -> Ended:
    if attempt.verdict is Verdict.SERVED:
        return Ended(request_id)
    return Ended(request_id, attempt.verdict, attempt.kind, attempt.lost_s, attempt.retry_after_s)


def _size(event: BookingEvent) -> int:
    """Return about how many bytes an event takes."""
    if isinstance(event, Placed):
        return _EVENT_BYTES + len(event.keys) + len(event.hashes)
    return _EVENT_BYTES
