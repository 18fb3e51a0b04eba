"""One engine of a simulated fleet: its steps, and what its sidecar would publish of its cache."""

from collections.abc import Sequence

from kvmesh.core.closure import Closure
from kvmesh.core.decision import LoadReport
from kvmesh.core.engine_model import EngineModel
from kvmesh.core.engine_options import EngineOptions
from kvmesh.core.engine_request import BlocksRemoved, BlocksStored, EngineEvent, Step
from kvmesh.core.events import Event, WorkerId
from kvmesh.core.fleet_request import Passage
from kvmesh.core.tier_table import Dropped, Held, TierTable


class FleetEngine:
    """An `EngineModel` and its clock: `step` is under way until `ends_s`.

    `busy_s` is the time spent in steps. Passages are those of requests added here.
    """

    def __init__(self, worker: WorkerId, options: EngineOptions) -> None:
        self.worker = worker
        self.model = EngineModel(options)
        self.step: Step | None = None
        self.awake = False
        self.ends_s = 0.0
        self.busy_s = 0.0
        self.passages: dict[str, Passage] = {}
        self._ends: list[float] = []
        self._pauses: list[float] = []
        self._growing: dict[int, list[Passage]] = {}
        self._table = TierTable(0)
        self._closure = Closure()

    @property
    def step_number(self) -> int:
        """Return the number of the step that ended last."""
        return len(self._ends) - 1

    def begin(self, now: float) -> float | None:
        """Begin the next step; return when it ends, None when there is nothing to do."""
        step = self.step = self.model.step(now)
        if step is None:
            self.awake = False
            return None
        self.busy_s += step.duration_s
        self.ends_s = now + step.duration_s
        return self.ends_s

    def end(self, now: float) -> None:
        """Note the end of the step under way."""
        self._pauses.append(now - self._ends[-1] if self._ends else 0.0)
        self._ends.append(now)

    def expect_growth(self, passage: Passage, tokens: int) -> None:
        """Have `passage` among those `grown` returns, once it has `tokens` tokens."""
        step = passage.open_step + tokens - passage.tokens_before - 1
        passage.due_step = step
        self._growing.setdefault(step, []).append(passage)

    def grown(self) -> list[Passage]:
        """Return the passages whose growth was expected in the step that ended."""
        step = self.step_number
        return [one for one in self._growing.pop(step, ()) if one.due_step == step]

    def pauses_ms(self, passage: Passage) -> tuple[float, ...]:
        """Return the times between a finished passage's tokens, ms. O(tokens)."""
        pauses: list[float] = []
        last: int | None = None
        for first, end in passage.segments:
            if last is not None:
                pauses.append(self._ends[first] - self._ends[last])
            pauses += self._pauses[first + 1 : end + 1]
            last = end
        return tuple(pause * 1000.0 for pause in pauses)

    def fold(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Return what the sidecar would publish: counted per copy, and prefix-closed."""
        published: list[Event] = []
        for event in events:
            if isinstance(event, BlocksStored):
                self._table.add(event.parent, event.hashes)
                for change in self._table.take(held=True):
                    assert isinstance(change, Held)
                    published += self._closure.hold(change.parent, change.hashes)
            else:
                assert isinstance(event, BlocksRemoved)
                self._table.remove(event.hashes)
                for change in self._table.take(held=False):
                    assert isinstance(change, Dropped)
                    published += self._closure.drop(change.hashes)
        return published

    def report(self) -> LoadReport:
        """Return the load as the engine's own metrics show it."""
        found = self.model.statistics()
        return LoadReport(
            running_requests=found.running_requests,
            waiting_requests=found.waiting_requests,
            used_blocks=found.active_blocks,
            total_blocks=found.usable_blocks,
        )
