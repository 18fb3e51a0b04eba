"""One engine of a simulated fleet: its steps, and what its sidecar would publish of its cache."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain, cycle, islice
from typing import Final

import msgspec

from kvmesh.core.blocks.events import Event, WorkerId
from kvmesh.core.engines.kv_events.closure import Closure
from kvmesh.core.members.worker_info import AdapterReport, LoadReport
from kvmesh_lab.mocker.model.cache_group import FIRST_OTHER
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.lower_tiers import Link
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    BlocksSunk,
    EngineEvent,
    Step,
)
from kvmesh_lab.mocker.model.step_calendar import StepCalendar
from kvmesh_lab.simulator.fleet.ends import EngineEnds
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import Passage
from kvmesh_lab.simulator.fleet.tier_table import Dropped, TierStored, TierTable

RUN_STEPS: Final = 64
"""Steps looked ahead at most: a request that comes makes what is left of them vain."""


class FleetEngine:
    """An `EngineModel` and its clock: `step` is under way until `ends_s`, None for a run.

    A run is what would be several steps that each only give every request a token: it takes an
    event where a router hears of growth and one at its end, instead of one a step. `strides` False:
    one step at a time, for those who look at the model in between. `turns` counts what was begun,
    gone on with or cut short. `busy_s` is the time spent in steps that ended. Passages are those of
    requests added here. What begins takes `slowness` times as long as it should. `coming` and
    `going` are the ways of blocks from and to other engines.
    """

    def __init__(self, worker: WorkerId, options: EngineOptions, *, strides: bool = True) -> None:
        self.worker = worker
        self.model = EngineModel(options)
        self.turns = 0
        self.step: Step | None = None
        self.awake = False
        self.ends_s = 0.0
        self.busy_s = 0.0
        self.slowness = 1.0
        self._step_s = 0.0
        self.passages: dict[str, Passage] = {}
        self._ends: list[float] = []
        self._pauses_ms: list[float] = []
        self._growing = StepCalendar[Passage]()
        self.strides = strides
        self._run_s: list[float] = []
        self._run_ends: list[float] = []
        self._stop = 0
        self._began_s = 0.0
        self.coming, self.going = Link(), Link()
        self._tables = [TierTable(tier) for tier in range(1 + len(options.tiers))]
        self._closures = [Closure(table.tier) for table in self._tables]
        groups = self.model.groups
        self._reuse = EngineEnds(groups.groups, options.block_size) if groups else None

    @property
    def step_number(self) -> int:
        """Return the number of the step that ended last."""
        return len(self._ends) - 1

    def begin(self, now: float) -> float | None:
        """Begin the next step or run, or go on with a run; return when to call `end`, None when
        there is nothing to do.
        """
        self.turns += 1
        self._began_s = now
        if self.strides and not self._run_ends:
            self.step = None
            self._run_s = [one * self.slowness for one in self.model.foresee(RUN_STEPS)]
            self._run_ends = list(accumulate(self._run_s, initial=now))[1:]
        if self._run_ends:
            due = self._growing.next_step() - len(self._ends)
            self._stop_at(int(min(due + 1, len(self._run_ends))))
            return self.ends_s
        step = self.step = self.model.step(now)
        if step is None:
            self.awake = False
            return None
        self._step_s = step.duration_s * self.slowness
        self.ends_s = now + self._step_s
        return self.ends_s

    def busy_until(self, now: float) -> float:
        """Return the time spent in steps, s, with that under way."""
        return self.busy_s + (now - self._began_s if self.ends_s > now else 0.0)

    def cut(self, now: float) -> bool:
        """Have a run end with its step that is under way; return whether `ends_s` is sooner now."""
        under_way = bisect_left(self._run_ends, now) + 1
        del self._run_ends[under_way:]
        if under_way >= self._stop:
            return False
        self.turns += 1
        self._stop_at(under_way)
        return True

    def end(self, now: float) -> None:
        """Note the end of the step under way, or that a run has come to where `begin` said."""
        if self.step is not None:
            self.busy_s += self._step_s
            self._pauses_ms.append((now - self._ends[-1]) * 1000.0 if self._ends else 0.0)
            self._ends.append(now)
            return
        stop = self._stop
        ends = self._run_ends[:stop]
        self.model.skip(stop)
        before = chain((self._ends[-1],), ends)
        self._pauses_ms += [(end - last) * 1000.0 for end, last in zip(ends, before, strict=False)]
        self._ends += ends
        for duration_s in self._run_s[:stop]:
            self.busy_s += duration_s
        del self._run_ends[:stop], self._run_s[:stop]
        self._stop = 0

    def expect_growth(self, passage: Passage, tokens: int) -> None:
        """Have `passage` among those `grown` returns, once it has `tokens` tokens."""
        step = passage.open_step + tokens - passage.tokens_before - 1
        passage.due_step = step
        self._growing.enter(step, passage)

    def grown(self) -> list[Passage]:
        """Return the passages whose growth was expected in the step that ended."""
        step = len(self._ends) - 1
        return [one for one in self._growing.take(step) if one.due_step == step]

    def pauses_ms(self, passage: Passage) -> tuple[float, ...]:
        """Return the times between a finished passage's tokens, ms. O(tokens)."""
        pauses: list[float] = []
        last: int | None = None
        for first, end in passage.segments:
            if last is not None:
                pauses.append((self._ends[first] - self._ends[last]) * 1000.0)
            pauses += self._pauses_ms[first + 1 : end + 1]
            last = end
        return tuple(pauses)

    def fold(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Return what the sidecar would publish: counted per copy, and prefix-closed."""
        published: list[Event] = []
        for event in events:
            if isinstance(event, BlocksStored):
                for place in self._places(event.tier):
                    table, closure = self._tables[place], self._closures[place]
                    table.add(event.parent, event.hashes)
                    for change in table.take(held=True):
                        assert isinstance(change, TierStored)
                        published += closure.hold(change.parent, change.hashes)
            elif isinstance(event, BlocksRemoved | BlocksSunk):
                # What sank is still held below: only the tier that it left holds it no longer.
                sunk = isinstance(event, BlocksSunk)
                hashes = _of_full_attention(event.hashes)
                places = (event.tier - 1,) if sunk else self._places(event.tier)
                for place in places:
                    table, closure = self._tables[place], self._closures[place]
                    table.remove(hashes)
                    for change in table.take(held=False):
                        assert isinstance(change, Dropped)
                        published += closure.drop(change.hashes)
        return self._reuse.fold(events, published) if self._reuse else published

    def _places(self, tier: int) -> range:
        """Return the tiers that hold what is held in `tier`, as they mean "there or nearer"."""
        return range(tier, len(self._tables))

    def report(self) -> LoadReport:
        """Return the load as the engine's own metrics show it."""
        found = self.model.statistics()
        return LoadReport(
            running_requests=found.running_requests,
            waiting_requests=found.waiting_requests,
            used_blocks=found.active_blocks,
            total_blocks=found.usable_blocks,
            adapters=AdapterReport(self.model.options.max_loras, found.running_adapters),
        )

    def _stop_at(self, steps: int) -> None:
        """Have the run come to a stop when so many more of its steps are done."""
        self._stop = steps
        self.ends_s = self._run_ends[steps - 1]


def _of_full_attention(keys: list[int]) -> list[int]:
    """Return the hashes of these keys that are of no other group: they are the keys themselves."""
    return [key for key in keys if key < FIRST_OTHER]


def make_engines(options: FleetOptions, *, strides: bool) -> tuple[FleetEngine, ...]:
    """Return the fleet's engines, each at its speed, named in their order."""
    width = len(str(options.engines - 1))
    ratios = islice(cycle(options.speed_ratios), options.engines)
    kinds = options.kinds or (options.engine,) * options.engines
    return tuple(
        FleetEngine(
            WorkerId(f"worker-{number:0{width}d}"),
            msgspec.structs.replace(kind, speedup_ratio=kind.speedup_ratio * ratio),
            strides=strides,
        )
        for number, (kind, ratio) in enumerate(zip(kinds, ratios, strict=True))
    )
