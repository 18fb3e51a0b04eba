"""A bucket in virtual time: replicas and a NATS server as queues that measured costs fill.

Each replica is one processor that does one thing after another: requests, chunks of streams,
siblings' bookings, journal records, heartbeats. The server has some processors; a message takes the
first that is free. What takes time is taken from `costs`; networks take `hop_s`.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from benchmarks.fleet.costs import PlaneCosts, RequestCosts
from kvmesh_lab.simulator.fleet.agenda import Agenda

US = 1e-6


class Fleet(msgspec.Struct, frozen=True):
    """What is simulated. Rates are per second, of the whole fleet.

    `chunks` are those of an answer's stream that a replica forwards: 0 where answers come whole, or
    where replicas only say where to send (an endpoint picker). A worker's sidecar appends what its
    engine stored and removed each `batch_s`, bookings are gathered for `flush_s`.
    """

    workers: int = 1_000
    replicas: int = 8
    requests_s: float = 20_000.0
    chunks: float = 0.0
    events: bool = True
    batch_s: float = 0.05
    flush_s: float = 0.005
    beat_s: float = 1.0
    hop_s: float = 0.0002
    nats_processors: int = 2
    seed: int = 1


class Load(msgspec.Struct, frozen=True):
    """What a run showed: shares of a processor's time, and seconds.

    `waits` are those of requests for their replica, `booking_lags` from a decision until the last
    sibling knows it, `event_lags` from an engine's batch until the last replica has applied it.
    """

    work: dict[str, float]
    server: float
    bytes_s: float
    waits: list[float]
    booking_lags: list[float]
    event_lags: list[float]

    @property
    def replica(self) -> float:
        """Return the share of a replica's processor that is used."""
        return sum(self.work.values())


class Queue:
    """Processors that take work in the order in which it comes."""

    def __init__(self, processors: int = 1) -> None:
        self.busy_s = 0.0
        self._free_s = [0.0] * processors

    def do(self, now: float, work_s: float) -> float:
        """Return when work that comes now is done."""
        place = min(range(len(self._free_s)), key=self._free_s.__getitem__)
        begun = max(now, self._free_s[place])
        self._free_s[place] = begun + work_s
        self.busy_s += work_s
        return begun + work_s


Action = Callable[[float], None]


def _forget(now: float) -> None:
    """Do nothing when a message has arrived."""
    del now


class Message(msgspec.Struct, frozen=True):
    """What a server passes on to replicas, whom each it costs `us`; `on_done` is told when the last
    of them is through with it.
    """

    kind: str
    size: float
    receivers: Sequence[int]
    us: float
    on_done: Action = _forget
    append: bool = False


class Plane:
    """Plays a fleet; the same arguments give the same figures."""

    def __init__(self, fleet: Fleet, request: RequestCosts, costs: PlaneCosts) -> None:
        self._fleet, self._request, self._costs = fleet, request, costs
        self._rng = random.Random(fleet.seed)
        self._agenda = Agenda[Action]()
        self._replicas = [Queue() for _ in range(fleet.replicas)]
        self._server = Queue(fleet.nats_processors)
        self._work: dict[str, float] = {}
        self._bytes = 0.0
        self._pending: list[list[float]] = [[] for _ in range(fleet.replicas)]
        self._waits: list[float] = []
        self._booking_lags: list[float] = []
        self._event_lags: list[float] = []

    def run(self, seconds: float) -> Load:
        """Play so many seconds."""
        fleet, rng, at = self._fleet, self._rng, self._agenda.enter
        at(rng.expovariate(fleet.requests_s), self._on_request)
        for place in range(fleet.replicas):
            at(rng.uniform(0.0, fleet.flush_s), partial(self._on_flush, place))
            at(rng.uniform(0.0, fleet.beat_s), partial(self._on_beat, self._costs.replica_beat_us))
            at(rng.uniform(0.0, 0.001), partial(self._on_chunks, place))
        for _ in range(fleet.workers):
            at(rng.uniform(0.0, fleet.beat_s), partial(self._on_beat, self._costs.worker_beat_us))
            if fleet.events:
                at(rng.uniform(0.0, fleet.batch_s), self._on_batch)
        while self._agenda.next_s() <= seconds:
            now, action = self._agenda.take()
            action(now)
        share = 1.0 / seconds / fleet.replicas
        return Load(
            work={kind: busy_s * share for kind, busy_s in self._work.items()},
            server=self._server.busy_s / seconds / fleet.nats_processors,
            bytes_s=self._bytes / seconds,
            waits=self._waits,
            booking_lags=self._booking_lags,
            event_lags=self._event_lags,
        )

    def _do(self, place: int, kind: str, now: float, us: float) -> float:
        self._work[kind] = self._work.get(kind, 0.0) + us * US
        return self._replicas[place].do(now, us * US)

    def _on_request(self, now: float) -> None:
        place = self._rng.randrange(self._fleet.replicas)
        done = self._do(place, "requests", now, self._request.own_us)
        self._waits.append(done - now - self._request.own_us * US)
        self._pending[place].append(done)
        gap_s = self._rng.expovariate(self._fleet.requests_s)
        self._agenda.enter(now + gap_s, self._on_request)

    def _on_chunks(self, place: int, now: float) -> None:
        """Forward what came of all streams in a millisecond."""
        fleet = self._fleet
        chunks = fleet.chunks * fleet.requests_s / fleet.replicas * 0.001
        if chunks:
            self._do(place, "chunks", now, chunks * self._costs.chunk_us)
            self._agenda.enter(now + 0.001, partial(self._on_chunks, place))

    def _on_flush(self, place: int, now: float) -> None:
        """Send the bookings since the last flush to all siblings."""
        decided, self._pending[place] = self._pending[place], []
        self._agenda.enter(now + self._fleet.flush_s, partial(self._on_flush, place))
        siblings = [other for other in range(self._fleet.replicas) if other != place]
        if not decided or not siblings:
            return
        request, count = self._request, len(decided)

        def on_heard(last: float) -> None:
            self._booking_lags += [last - one for one in decided]

        message = Message(
            kind="siblings",
            size=request.booking_bytes * count,
            receivers=siblings,
            us=self._costs.bookings_us + request.sibling_us * count,
            on_done=on_heard,
        )
        # A flush tells what is done by then: a queue that is behind sends late.
        self._send(max(now, decided[-1]), message)

    def _on_batch(self, now: float) -> None:
        """Append what one engine stored and removed since its last batch."""
        fleet, costs = self._fleet, self._costs
        self._agenda.enter(now + fleet.batch_s, self._on_batch)
        blocks = 2.0 * self._request.blocks * fleet.requests_s / fleet.workers * fleet.batch_s
        message = Message(
            kind="events",
            size=40.0 + 8.0 * blocks,
            receivers=range(fleet.replicas),
            us=costs.record_us + costs.block_us * blocks,
            on_done=lambda last: self._event_lags.append(last - now),
            append=True,
        )
        self._send(now, message)

    def _on_beat(self, us: float, now: float) -> None:
        """Have every replica hear a heartbeat."""
        self._agenda.enter(now + self._fleet.beat_s, partial(self._on_beat, us))
        self._send(now, Message("heartbeats", 600.0, range(self._fleet.replicas), us))

    def _send(self, now: float, message: Message) -> None:
        self._agenda.enter(now + self._fleet.hop_s, partial(self._pass_on, message))

    def _pass_on(self, message: Message, now: float) -> None:
        """Have the server take a message in, and out to all receivers."""
        costs, count = self._costs, len(message.receivers)
        size = message.size * (1 + count)
        self._bytes += size
        us = costs.nats_in_us + costs.nats_out_us * count + costs.nats_kilobyte_us * size / 1000.0
        us += costs.append_us if message.append else 0.0
        done = self._server.do(now, us * US)
        self._agenda.enter(done + self._fleet.hop_s, partial(self._receive, message))

    def _receive(self, message: Message, now: float) -> None:
        last = max(self._do(one, message.kind, now, message.us) for one in message.receivers)
        message.on_done(last)
