"""Following one engine's event publisher without losing a batch unnoticed.

The publisher numbers its batches from 0, sends each once to whoever listens (live), and keeps the
last ones to send again when asked (replay). Both ways lose messages. This state machine decides
what is delivered, what is asked for again, and when the engine must have begun anew; it does no
I/O: it is told what arrived and answers with what to do.
Source: vllm/distributed/kv_events.py `ZmqEventPublisher` (all known publishers share it).
"""

from array import array
from collections.abc import Iterator
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.core.engines.kv_events.pending import PendingBatches
from kvmesh.core.engines.kv_events.source_actions import (
    Action,
    AskReplay,
    Deliver,
    Lost,
    Restarted,
    Resumed,
    SourceCaughtUp,
)

END_OF_REPLAY: Final = 2**64 - 1
"""Sequence number of the reply that ends an answer."""


def batch_digest(payload: bytes) -> int:
    """Return what tells a batch from any other: payloads have a timestamp."""
    return xxh3_64_intdigest(payload)


class SourceOptions(msgspec.Struct, frozen=True):
    """Patience: `reply_timeout_s` for the first reply, `silence_timeout_s` for each later one.

    The publisher sends an answer in one go, so a short silence in it means that its end was
    dropped. `pending` bounds the live batches kept while a replay is under way.
    """

    reply_timeout_s: float = 2.0
    silence_timeout_s: float = 0.3
    max_failures: int = 3
    probe_interval_s: float = 15.0
    retry_replay_after_s: float = 30.0
    pending: int = 10_000
    remembered: int = 16_384
    """Digests of delivered batches kept: they tell a repeated batch from a restarted engine."""


class EventSource:
    """What is known of one publisher. `last_seq` is the last batch delivered, -1 for none."""

    def __init__(self, options: SourceOptions, *, can_replay: bool) -> None:
        self._options = options
        self._can_replay = can_replay
        self.last_seq = -1
        self.deadline: float | None = None
        """When to call `on_time` at the latest, in the caller's clock."""
        self.lost_batches = 0
        self.restarts = 0
        self.rounds = 0
        self._asking = self._current = False
        self._anchor = -1
        self._answered = False
        self._verify_restart = False
        self._anew = False
        self._resume: tuple[int, int] | None = None
        self._progress_mark = -1
        self._failures = 0
        self._no_replay_before = 0.0
        self._pending = PendingBatches(options.pending)
        self._digests = array("Q", bytes(8 * options.remembered))

    def start(self, now: float) -> list[Action]:
        """Begin, the live subscription being made already: replay from the first batch on."""
        return list(self._ask(now) if self._may_ask(now) else ())

    def on_live(self, seq: int, payload: bytes, now: float) -> list[Action]:
        """Take a batch that was just published."""
        waits = self._pending or self._verify_restart or self._resume
        if seq == self.last_seq + 1 and not waits:
            if not self._asking or not self._current:
                self._set_probe(now)
            if self._current:
                return [self._deliver(seq, payload)]
            # Nothing was published between: what a replay under way brings is known.
            self._asking = False
            return [self._deliver(seq, payload), *self._caught_up()]
        if self._asking and self._pending and seq <= self._pending.last[0]:
            self._pending.clear()
            self._pending.add(seq, payload)
            return list(self._restart(now))
        self._pending.add(seq, payload)
        return [] if self._asking and seq > self.last_seq else list(self._drain(now))

    def on_reply(self, round_: int, seq: int, payload: bytes, now: float) -> list[Action]:
        """Take one reply of replay round `round_`; those of older rounds are dropped."""
        if not self._asking or round_ != self.rounds:
            return []
        self.deadline = now + self._options.silence_timeout_s
        first, self._answered = not self._answered, True
        if first and self._anew:
            return list(self._anew_or_not(seq, now))
        if first and self._resume:
            return list(self._resumed_or_not(seq, payload, self._resume, now))
        if seq == END_OF_REPLAY:
            return list(self._end_round(now, empty=first))
        if first and self._is_other_engine(seq, payload):
            self._pending.clear()
            return list(self._restart(now))
        return list(self._replayed(seq, payload, now, first=first))

    def on_reconnect(self, now: float) -> list[Action]:
        """Learn that the live connection was made again: batches, or an engine, may be gone."""
        if not self._can_replay:
            return []
        # What is pending may be the engine's before; if not, the replay has it again.
        self._pending.clear()
        self._verify_restart = True
        self._current = False
        self._failures = 0
        self._no_replay_before = now
        return list(self._ask(now))

    def begin_again(self, now: float) -> list[Action]:
        """Have all delivered anew, if the publisher still has all of it: else nothing changes."""
        if self._asking or not self._may_ask(now):
            return []
        asked = list(self._ask(now, first=0))
        self._anew = True
        return asked

    def resume(self, seq: int, digest: int, now: float) -> list[Action]:
        """Go on behind batch `seq`, with all it led to known, if the publisher still has it and it
        has that digest (see `batch_digest`): else nothing changes.

        What comes live meanwhile waits. It takes the place of a replay under way, unless that one
        is to show whether the engine is still the same.
        """
        anew = self._asking and self._anew
        if not self._may_ask(now) or self._verify_restart or anew:
            return []
        asked = list(self._ask(now, first=seq))
        self._resume = (seq, digest)
        return asked

    def on_time(self, now: float) -> list[Action]:
        """Look at the clock: a reply is overdue, or the publisher has been silent for long."""
        if self.deadline is None or now < self.deadline:
            return []
        if self._asking:
            return list(self._next_round(now))
        if self._may_ask(now):
            return list(self._ask(now))
        self._set_probe(now)
        return []

    def _replayed(self, seq: int, payload: bytes, now: float, *, first: bool) -> Iterator[Action]:
        if seq <= self.last_seq:
            return
        if seq > self.last_seq + 1:
            if not first and not self._is_stuck():
                yield from self._next_round(now)
                return
            # Gone from the publisher's buffer, or never in it: it skips what it failed to send.
            self._failures = 0
            while self._pending and self._pending.first[0] < seq:
                pending = self._pending.take()
                if pending[0] > self.last_seq:
                    yield from self._skip_to(*pending)
        yield from self._skip_to(seq, payload)

    def _may_ask(self, now: float) -> bool:
        return self._can_replay and now >= self._no_replay_before

    def _set_probe(self, now: float) -> None:
        self.deadline = now + self._options.probe_interval_s if self._can_replay else None

    def _deliver(self, seq: int, payload: bytes) -> Deliver:
        self.last_seq = seq
        self._digests[seq % self._options.remembered] = batch_digest(payload)
        return Deliver(seq, payload)

    def _skip_to(self, seq: int, payload: bytes) -> Iterator[Action]:
        """Deliver `seq`, which is after the last; what lies between is lost."""
        first = self.last_seq + 1
        if seq > first:
            self.lost_batches += seq - first
            for lost in range(max(first, seq - self._options.remembered), seq):
                self._digests[lost % self._options.remembered] = 0
            yield Lost(first, seq - 1)
        yield self._deliver(seq, payload)

    def _is_repeated(self, seq: int, payload: bytes) -> bool:
        """Return whether `seq`, delivered before, had this payload; payloads have a timestamp.

        With two ways for a batch to come, one lost on the one may come late on the other: that is
        no sign of another engine.
        """
        if seq <= self.last_seq - self._options.remembered:
            return False
        known = self._digests[seq % self._options.remembered]
        return known == batch_digest(payload) or (known == 0 and self._can_replay)

    def _is_stuck(self) -> bool:
        """Return whether this round, the last one to be tried, got no further than those before."""
        return (
            self.last_seq == self._progress_mark
            and self._failures + 1 >= self._options.max_failures
        )

    def _is_other_engine(self, seq: int, payload: bytes) -> bool:
        """Return whether the first reply shows, or after a reconnect may show, another engine.

        When the batch to compare has left the buffer meanwhile, nothing delivered can be trusted.
        """
        if self._anchor < 0 or seq < self._anchor:
            return False
        if seq > self._anchor:
            return self._verify_restart
        return not self._is_repeated(seq, payload)

    def _anew_or_not(self, seq: int, now: float) -> Iterator[Action]:
        if seq == 0:
            self._pending.clear()
            yield from self._restart(now)
            return
        self._asking = False
        self._set_probe(now)
        yield from self._drain(now)
        if not self._asking:
            yield from self._caught_up()

    def _caught_up(self) -> Iterator[Action]:
        self._current = True
        yield SourceCaughtUp(self.last_seq)

    def _resumed_or_not(
        self, seq: int, payload: bytes, wanted: tuple[int, int], now: float
    ) -> Iterator[Action]:
        self._resume = None
        if (seq, batch_digest(payload)) != wanted:
            yield from self._ask(now)
            return
        self.last_seq = self._anchor = self._progress_mark = seq
        self._digests[seq % self._options.remembered] = wanted[1]
        self._failures = 0
        self._current = False
        yield Resumed(seq)

    def _ask(self, now: float, first: int | None = None) -> Iterator[Action]:
        """Ask for the last delivered batch, to compare it, and all behind it."""
        self.rounds += 1
        self._asking, self._answered = True, False
        self._anchor = self._progress_mark = self.last_seq
        self.deadline = now + self._options.reply_timeout_s
        self._anew = False
        self._resume = None
        yield AskReplay(self.rounds, max(0, self.last_seq) if first is None else first)

    def _next_round(self, now: float) -> Iterator[Action]:
        """Ask again from where the answer broke off, or give up when that leads nowhere."""
        if self.last_seq > self._progress_mark:
            self._failures = 0
        else:
            self._failures += 1
        if self._failures < self._options.max_failures:
            yield from self._ask(now)
            return
        self._failures = 0
        self._asking = False
        self._resume = None
        self._no_replay_before = now + self._options.retry_replay_after_s
        self._set_probe(now)
        yield from self._drain(now)

    def _end_round(self, now: float, *, empty: bool) -> Iterator[Action]:
        if empty and self._anchor >= 0 and self._verify_restart:
            # It has not even the batch delivered last: an engine with fewer batches behind it.
            self._pending.clear()
            yield from self._restart(now)
            return
        while self._pending and self._pending.first[0] == self.last_seq + 1:
            yield self._deliver(*self._pending.take())
        if self._pending and self._pending.first[0] > self.last_seq:
            yield from self._next_round(now)
            return
        self._asking = self._verify_restart = False
        self._failures = 0
        self._set_probe(now)
        yield from self._drain(now)
        if not self._asking:
            yield from self._caught_up()

    def _restart(self, now: float) -> Iterator[Action]:
        """Begin at 0 again; what is pending is the new engine's."""
        self.restarts += 1
        self.last_seq = -1
        self._failures = 0
        self._asking = self._verify_restart = self._current = False
        self._resume = None
        yield Restarted()
        if self._may_ask(now):
            yield from self._ask(now)
        else:
            yield from self._drain(now)

    def _drain(self, now: float) -> Iterator[Action]:
        """Deliver what is pending in order; at a gap ask, or if that is no use, lose it."""
        if self._pending and self._verify_restart and not self._asking and self.last_seq >= 0:
            # After a reconnect, and no answer: nobody can tell whether it is the same engine.
            yield from self._restart(now)
            return
        while self._pending:
            seq, payload = self._pending.first
            if seq <= self.last_seq:
                if not self._is_repeated(seq, payload):
                    yield from self._restart(now)
                    return
                self._pending.take()
                continue
            if seq > self.last_seq + 1 and self._may_ask(now):
                yield from self._ask(now)
                return
            self._pending.take()
            yield from self._skip_to(seq, payload)
        if not self._asking:
            self._set_probe(now)
