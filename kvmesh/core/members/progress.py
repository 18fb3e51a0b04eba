"""Whether engines make progress: by their counters, KV events and answers, never by how long other
requests took.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import msgspec

HANG_S: Final = 5.0
"""An engine that stands still for so long with requests hangs, in a fleet that is not slow."""

PACES: Final = 2.0
"""Standstills that the fleet, or the engine itself, went through lately lengthen that so many times
over.
"""

MOST_PACE_S: Final = 60.0
"""A standstill that ended counts as no longer."""

PACE_KEPT: Final = 0.9
"""Share of the longest recent standstill that is left with each reading that shows progress."""

LAG_S: Final = 3.0
"""Readings are older than answers, by so much at most: sidecar, heartbeat, router."""

MISSES: Final = 3
"""Readings in a row without counters of an engine that had some: it shows them no more."""


class EngineReading(msgspec.Struct, frozen=True, gc=False):
    """What an engine showed of itself once.

    `computed` changes whenever it computes tokens, None: not shown. It has `running` and `waiting`
    requests, as it says, and uses `used_blocks` KV blocks.
    """

    computed: int | None
    running: int = 0
    waiting: int = 0
    used_blocks: int = 0


class Due(msgspec.Struct, frozen=True):
    """A request that dues for its first byte.

    Its engine should be at work on it since `since_s`, and may take `prefill_s` for its prompt.
    `evident` False: it may wait in front of the engine, for media for instance, so that only
    requests that the engine says it runs show that it stands still.
    """

    since_s: float
    prefill_s: float = 0.0
    evident: bool = True


class _Record:
    __slots__ = (
        "counted_s", "counts", "last", "lies", "misses", "moved_s", "pace_s", "proven", "read_s",
        "still",
    )  # fmt: skip

    def __init__(self, reading: EngineReading, now: float) -> None:
        self.last = reading
        self.counts = reading.computed is not None
        self.proven = bool(reading.computed)
        self.lies = False
        self.misses = 0
        self.still = 0
        self.pace_s = 0.0
        self.moved_s = self.counted_s = self.read_s = now

    def count(self, before: int, now: float) -> None:
        """Take that the counters changed: smaller ones are those of an engine that began anew."""
        computed = self.last.computed or 0
        if computed < before or not self.is_judged():
            # Until now they have shown no standstill.
            self.still, self.pace_s = 0, 0.0
        self.counted_s, self.lies, self.proven = now, False, computed > 0

    def move(self, now: float) -> None:
        """Take that the engine makes progress; remember how long it stood still before."""
        stood_s = now - self.moved_s if self.still and self.last.running else 0.0
        self.pace_s = max(self.pace_s * PACE_KEPT, min(stood_s, MOST_PACE_S))
        self.moved_s, self.still = now, 0

    def is_judged(self) -> bool:
        """Return whether the counters can show that the engine stands still."""
        return self.counts and self.proven and not self.lies

    def standstill_s(self, now: float) -> float:
        """Return for how long it stands still, or stood lately."""
        stands_s = min(now - self.moved_s, MOST_PACE_S) if self.still else 0.0
        return max(self.pace_s, stands_s)


class Progress:
    """What each engine showed of being at work; times are the caller's clock, seconds.

    An engine is judged only if it shows counters that move with its answers (`served_s` tells when
    one last began or ended there), and has shown progress before: the first request may compile for
    minutes. `hang_s` 0: nobody is ever judged. While most of the others with requests stand still
    as well the fleet is slow, and patience grows with their standstill, up to `MOST_PACE_S` of it.
    """

    def __init__(self, served_s: Callable[[str], float], hang_s: float = HANG_S) -> None:
        self.hang_s = hang_s
        self._served_s = served_s
        self._records: dict[str, _Record] = {}

    def report(self, worker: str, reading: EngineReading, now: float) -> None:
        """Take a fresh reading of an engine's figures. O(1)."""
        record = self._records.get(worker)
        if record is None:
            self._records[worker] = _Record(reading, now)
            return
        if reading.computed is None:
            record.misses += 1
            record.counts &= record.misses < MISSES
            return
        last, record.last = record.last, reading
        record.counts, record.misses, record.read_s = True, 0, now
        if not last.running and reading.running:
            # It was idle until now: that is no standstill.
            record.moved_s, record.still = now, 0
        if reading.computed != last.computed:
            record.count(last.computed or 0, now)
        if reading.computed != last.computed or reading.used_blocks != last.used_blocks:
            record.move(now)
            return
        record.still += 1
        served_s = self._served_s(worker)
        record.lies |= served_s > record.counted_s + LAG_S and now > served_s + LAG_S

    def shown(self, worker: str, now: float) -> None:
        """Take that the engine published KV events."""
        record = self._records.get(worker)
        if record is not None:
            record.move(now)

    def forget(self, worker: str) -> None:
        """Drop what is known of an engine that is gone."""
        self._records.pop(worker, None)

    def moved_s(self, worker: str) -> float:
        """Return when the engine's figures last showed progress, 0 for never."""
        record = self._records.get(worker)
        return record.moved_s if record is not None and record.counts else 0.0

    def is_stalled(
        self, worker: str, dues: Sequence[Due], now: float, *, byte_s: float = -inf
    ) -> bool:
        """Return whether the engine hangs at which these requests wait: its readings show that it
        stands still for longer than the fleet's pace explains. O(engines).

        The last byte of any answer under way there came at `byte_s`.
        """
        record = self._records.get(worker)
        if record is None or not self.hang_s or not record.is_judged():
            return False
        if not record.last.running:
            # A request that it lets wait while it runs none dues for something else: a grammar,
            # its KV cache from elsewhere. One that died within its first step shows no request.
            dues = [] if record.last.waiting else [one for one in dues if one.evident]
        if not dues:
            return False
        asked_s = min(one.since_s for one in dues)
        since_s = max(asked_s, record.moved_s, byte_s, self._served_s(worker))
        pace_s = max(record.pace_s, self._fleet_pace_s(worker, now))
        patience_s = self.hang_s + max(one.prefill_s for one in dues) + PACES * pace_s
        # A reading from the second half of that time: where none comes, nothing is known.
        return now - since_s > patience_s and record.read_s - since_s > patience_s / 2

    def _fleet_pace_s(self, worker: str, now: float) -> float:
        """Return the standstill that half of the other engines with requests do not exceed."""
        others = sorted(
            record.standstill_s(now)
            for name, record in self._records.items()
            if name != worker and record.is_judged() and record.last.running
        )
        return others[(len(others) - 1) // 2] if others else 0.0
