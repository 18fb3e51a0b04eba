"""One replica's part in the shared table of agents: what it tells, and what it makes of others'."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.shared import AgentUpdate, at, decode_update, encode_update
from kvmesh.core.programs.table import Agent, AgentRecord, order_of
from kvmesh.errors import CodecError

ABSENT_S: Final = 10.0
"""After so long without its replica a turn under way there is over: longer than a replica needs to
join after it read the table, and than it takes to find one dead (some 4 s).
"""

MAY_BE_LOST_S: Final = 10.0
"""What was told so shortly before the plane came back is told again."""


class SharingStatistics(msgspec.Struct, frozen=True):
    """Counts since the start, of records. `refused` do not decode, lie beyond bounds or are of a
    newer format; `orphaned` are turns that ended with their replica; `published_bytes` without
    subjects.
    """

    reported: int
    published_bytes: int
    received: int
    refused: int
    orphaned: int


class ProgramSharing:
    """Turns a governor's `updates` into values of the shared table, and values into what it hears.

    Every replica writes the agents whose turns it serves; the last written counts in the table, the
    larger revision in a replica's memory.
    """

    def __init__(self, governor: Governor, replica: str, epoch: int) -> None:
        self._governor = governor
        governor.shared = True
        self._replica = replica
        self._epoch = epoch
        self._own: OrderedDict[str, float] = OrderedDict()
        self._in_flight: dict[str, int] = {}
        self._under_way: dict[str, AgentUpdate] = {}
        self._absent: dict[str, float] = {}
        self._reported = self._published_bytes = self._received = self._refused = self._orphaned = 0

    def on_news(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever there is something to tell."""
        self._governor.on_news = call

    def has_updates(self) -> bool:
        """Return whether there is something to tell."""
        return bool(self._governor.updates)

    def take(self, most: int, now: float, unix_s: float) -> Iterator[tuple[str, bytes]]:
        """Yield at most `most` keys and values to write, new ones first.

        Each is taken as it is yielded: one that cannot be written takes no others along.
        """
        while self._own and next(iter(self._own.values())) < now - MAY_BE_LOST_S:
            self._in_flight.pop(self._own.popitem(last=False)[0], None)
        updates = self._governor.updates
        for key in list(islice(updates, most)):
            value = self._encode(key, updates.pop(key).record(now), unix_s)
            self._own[key] = now
            self._own.move_to_end(key)
            self._in_flight[key] = self._in_flight.get(key, 0) + 1
            self._reported += 1
            self._published_bytes += len(value)
            yield key, value

    def receive(self, key: str, value: bytes, now: float, unix_s: float | None = None) -> str:
        """Take a value of the table; return what is wrong with it, "" for nothing.

        `unix_s` is the time now of one that was in the table before, None of one just written.
        """
        try:
            updates = decode_update(value)
        except CodecError as error:
            self._refused += 1
            return str(error)
        own = (updates.replica, updates.epoch) == (self._replica, self._epoch)
        if not own:
            record = updates.record if unix_s is None else at(updates, unix_s - updates.reported_s)
            wrong = self._receive(key, record, now)
            if wrong:
                return wrong
            self._received += 1
        agent = self._governor.table.find(key)
        if agent is None:
            return ""
        behind = order_of(updates.record) < order_of(agent)
        if key in self._in_flight and (own or not behind):
            self._arrived(key)
        if behind:
            # Two wrote at a time, and the older record stands in the table now: for the next start.
            if key not in self._in_flight:
                self._report(agent)
        elif own or updates.record.phase not in ("running", "waiting"):
            self._under_way.pop(key, None)
        else:
            self._under_way[key] = updates
        return ""

    def publish_again(self) -> None:
        """Tell what may not have arrived while the plane went away."""
        for key in self._own:
            agent = self._governor.table.find(key)
            if agent is not None:
                self._report(agent)

    def settle(self, alive: Mapping[str, int], now: float) -> int:
        """End the turns that were under way at replicas, or lives of them, that are no more; return
        how many. `alive` are replicas with their epochs. The agents keep their reservations.
        """
        alive = {**alive, self._replica: self._epoch}
        for key in [one for one in self._under_way if self._governor.table.find(one) is None]:
            del self._under_way[key]
        tellers = {updates.replica for updates in self._under_way.values()}
        for replica in [*self._absent]:
            if replica in alive or replica not in tellers:
                del self._absent[replica]
        for replica in tellers - alive.keys():
            self._absent.setdefault(replica, now)
        orphans = [
            (key, updates)
            for key, updates in self._under_way.items()
            if updates.epoch < alive.get(updates.replica, 0)
            or now - self._absent.get(updates.replica, now) >= ABSENT_S
        ]
        for key, updates in orphans:
            del self._under_way[key]
            self._orphan(key, updates.record, now)
        return len(orphans)

    def statistics(self) -> SharingStatistics:
        """Return the counts."""
        return SharingStatistics(
            self._reported, self._published_bytes, self._received, self._refused, self._orphaned
        )

    def _report(self, agent: Agent) -> None:
        if agent.key not in self._governor.updates:
            self._governor.share(agent)

    def _arrived(self, key: str) -> None:
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key]

    def _encode(self, key: str, record: AgentRecord, unix_s: float) -> bytes:
        """Return a value that names who serves the turn: another's word is told on as such."""
        replica, epoch = self._replica, self._epoch
        of = self._under_way.get(key)
        if of is not None and order_of(of.record) == order_of(record):
            replica, epoch = of.replica, of.epoch
        return encode_update(replica, epoch, unix_s, record)

    def _receive(self, key: str, record: AgentRecord, now: float) -> str:
        wrong = self._governor.receive(key, record, now)
        self._refused += bool(wrong)
        return wrong

    def _orphan(self, key: str, record: AgentRecord, now: float) -> None:
        """Every remaining replica computes the same record, and publishes it."""
        agent = self._governor.table.find(key)
        if agent is None or agent.revision > record.revision:
            return
        self._orphaned += 1
        ended = msgspec.structs.replace(
            agent.record(now), revision=record.revision + 1, phase="paused", since_s=0.0
        )
        self._receive(key, ended, now)
        self._governor.share(agent)
