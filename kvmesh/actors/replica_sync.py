"""Shares bookings among router replicas, so that many decide as well as one."""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from kvmesh._native import Booking, BookingOutbox
from kvmesh.actors.kernel import Effect, Log, Message, Publish, Wake
from kvmesh.actors.messages import (
    BookingsWait,
    BusMessage,
    RouterGone,
    RouterSeen,
    SharesChanged,
    Started,
    StateWanted,
    Tick,
)
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.wire import Subjects, decode, encode
from kvmesh.core.members.loads import LOCAL
from kvmesh.core.members.readers import HEAR_S, Readers
from kvmesh.core.routing.peer_bookings import PeerBookings
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import CodecError
from kvmesh.formats import OWN, Formats


class ReplicaSyncOptions(msgspec.Struct, frozen=True):
    """Who this replica is (`epoch` grows at each restart), and the pace. Times in seconds.

    A booking after a quiet time is sent at once, those of the next `flush_s` together; at 100 ms
    replicas already herd. Each `beat_s` a replica says how far it is, so that a lost message shows
    and its bookings' leases are renewed. A message ends after `max_events` or with the event that
    fills `max_bytes`: one is folded in a turn. `reads` are the formats that this build knows.
    A state is told `state_slice` bookings a turn.
    """

    router: str
    bucket: str
    epoch: int
    namespace: str = "kvmesh"
    flush_s: float = 0.005
    beat_s: float = 1.0
    state_pause_s: float = 0.5
    max_events: int = 1024
    max_bytes: int = 64 * 1024
    reads: Formats = OWN
    state_slice: int = 128


class ReplicaSyncStatistics(msgspec.Struct, frozen=True):
    """Counters since the start. `gaps` counts messages of peers that never came, `refused` those
    and bookings for which there was no room, `untold` events that could not be told. `format` is
    what bookings are told in now, `held_by` a replica that reads no newer one, if any does not.
    """

    events_sent: int
    events_applied: int
    states_sent: int
    states_asked: int
    gaps: int
    garbage: int
    refused: int
    untold: int = 0
    format: int = 1
    held_by: str = ""


class ReplicaSync:
    """Sends this replica's bookings in numbered batches and applies the peers'.

    Whoever books tells `outbox`, whose `on_first` has to send `BookingsWait` here. Messages may be
    lost (core NATS): a gap in a peer's numbers makes this replica ask for the peer's whole state.
    Every event is idempotent, so state and batches may overlap. A peer that dies or restarts takes
    its bookings along.

    Bookings are told in the newest format that all live replicas read, and in the oldest that this
    build writes until they had time to be heard of. After a change the whole state is told in the
    new one.
    """

    def __init__(
        self, scheduler: Scheduler, options: ReplicaSyncOptions, *, name: str = "replica_sync"
    ) -> None:
        self.name = name
        self.outbox = BookingOutbox(scheduler.sequences, options.epoch)
        self._sequences = scheduler.sequences
        self._ledger = scheduler.ledger
        self._options = options
        self._subjects = Subjects(options.namespace, options.bucket)
        self._own_subject = self._subjects.bookings(options.router)
        self._bookings = self._subjects.bookings("")
        self.peers = PeerBookings(scheduler, options.reads.bookings)
        self.outbox.format = options.reads.bookings.oldest
        self._readers = Readers(options.reads)
        self._all_received = False
        self._held_by = ""
        self._flushing = False
        self._retelling: Iterator[Booking] | None = None
        self._state_s: float | None = None
        self._asked: dict[str, float] = {}
        self._garbage = Refusals()
        self._sent = self._states_sent = self._states_asked = self._reported_untold = 0

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case BusMessage(subject, data):
                return self._on_bus(subject, data, now)
            case BookingsWait() | SharesChanged():
                return () if self._flushing else self._send_and_gather()
            case Tick(kind):
                return self._on_tick(kind, now)
            case _:
                return self._on_rare(message, now)

    def statistics(self) -> ReplicaSyncStatistics:
        """Return the present counts."""
        peers = self.peers.statistics()
        return ReplicaSyncStatistics(
            events_sent=self._sent,
            events_applied=peers.applied,
            states_sent=self._states_sent,
            states_asked=self._states_asked,
            gaps=peers.gaps,
            garbage=self._garbage.count,
            refused=peers.refused,
            untold=self.outbox.untold,
            format=self.outbox.format,
            held_by=self._held_by,
        )

    def _send_and_gather(self) -> list[Effect]:
        self._flushing = self.outbox.gathering = True
        return [*self._flush(), Wake(self._options.flush_s, Tick("flush"))]

    def _flush(self) -> list[Effect]:
        """Send what waits, in batches within the bounds, and what of tenants' shares is new."""
        shares = self._ledger.publish()
        if not self.outbox.waiting and shares is None:
            return []
        options, outbox = self._options, self.outbox
        packed = b"" if shares is None else msgspec.msgpack.encode(shares)
        self._sent += outbox.waiting
        messages = outbox.take(options.max_events, options.max_bytes, packed)
        return [self._publish(message) for message in messages]

    def _publish(self, message: bytes) -> Effect:
        return Publish(self._subjects.bookings(self._options.router), message)

    def _on_bus(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        if subject == self._own_subject:
            return ()
        peer = subject.removeprefix(self._bookings)
        try:
            if 0 < len(peer) < len(subject):
                complete = self.peers.receive(peer, data, now)
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
        if wanted.router == self._options.router or self._retelling is not None:
            return ()
        if self._state_s is not None and now < self._state_s + pause:
            return ()
        return self._publish_state(now)

    def _publish_state(self, now: float) -> list[Effect]:
        self._state_s = now
        self._states_sent += 1
        before = self._flush()
        self.outbox.begin_state()
        idle = self._retelling is None
        self._retelling = iter(self._sequences.owned())
        return [*before, *(self._publish_slice() if idle else self._flush())]

    def _publish_slice(self) -> list[Effect]:
        """Tell of some more bookings, and of the others in a later turn."""
        if self._retelling is None:
            return []
        bookings = list(islice(self._retelling, self._options.state_slice))
        self.outbox.republish(bookings)
        if len(bookings) == self._options.state_slice:
            return [*self._flush(), Wake(0.0, Tick("state"))]
        self._retelling = None
        self.outbox.end_state()
        return self._flush()

    def _on_tick(self, kind: str, now: float) -> Iterable[Effect]:
        match kind:
            case "flush":
                if self.outbox.waiting or self._ledger.updates:
                    return self._send_and_gather()
                self._flushing = self.outbox.gathering = False
                return ()
            case "state":
                return [*self._flush(), *self._publish_slice()]
            case "format":
                self._all_received = True
                return self._choose_format(now)
            case _:
                return self._beat(now)

    def _beat(self, now: float) -> Iterable[Effect]:
        self.peers.forget_strangers(now)
        late_s = now - self._options.state_pause_s
        self._asked = {peer: asked_s for peer, asked_s in self._asked.items() if asked_s > late_s}
        self._sequences.renew_owner(LOCAL, now)
        for booking in self._sequences.expire(now):
            # A peer long unheard that had no news since would come back without a gap.
            self.peers.distrust(booking.owner)
        self.outbox.publish_growth()
        effects = [*self._flush(), *self._log_untold()]
        effects.append(
            self._publish(self.outbox.beat(msgspec.msgpack.encode(self._ledger.publish_again())))
        )
        effects += (effect for peer in self.peers.incomplete() for effect in self._ask(peer, now))
        effects += self._choose_format(now)
        # A `BookingsWait` that found the mailbox full must not leave the next ones unsent.
        self.outbox.gathering = self._flushing
        return (*effects, Wake(self._options.beat_s, Tick("beat")))

    def _log_untold(self) -> Iterator[Effect]:
        untold = self.outbox.untold
        if untold > self._reported_untold:
            updates, self._reported_untold = untold - self._reported_untold, untold
            yield Log("error", "bookings were not sent to other replicas", {"events": updates})

    def _on_rare(self, message: Message, now: float) -> Iterable[Effect]:
        match message:
            case Started():
                beat = Wake(self._options.beat_s, Tick("beat"))
                return (beat, Wake(HEAR_S, Tick("format")))
            case RouterSeen(heartbeat, joined):
                peer = heartbeat.router
                self.peers.note_alive(peer)
                asked = self._ask(peer, now) if joined else ()
                updates = self._readers.receive(peer, heartbeat.formats, now)
                return (*asked, *self._choose_format(now)) if updates else asked
            case RouterGone(router):
                self.peers.remove(router)
                self._asked.pop(router, None)
                self._readers.forget(router, now)
                return self._choose_format(now)
            case StateWanted():
                return self._on_state_wanted(message, now)
            case _:
                return ()

    def _choose_format(self, now: float) -> Iterable[Effect]:
        """Tell in the newest format that all read, the whole state first if it is another one."""
        if not self._all_received:
            return ()
        chosen = self._readers.format_of("bookings", now)
        self._held_by = self._readers.oldest("bookings", now)
        if chosen == self.outbox.format:
            return ()
        last = self._flush()
        self.outbox.format = chosen
        log = Log(
            "info",
            "bookings are sent in another format",
            {"format": chosen, "held_by": self._held_by},
        )
        return (log, *last, *self._publish_state(now))
