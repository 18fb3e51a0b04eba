"""What every worker costs at least, kept ready, so that few need be looked at closely."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kvmesh.core.events import WorkerId
from kvmesh.core.worker_state import WorkerState


class Line(NamedTuple):
    """Any prompt costs base + slope * own - min(credit, shared) + wait * crowd + fixed, or more."""

    base: float
    slope: float
    credit: float
    wait: float = 0.0


class Extent(NamedTuple):
    """A prompt's share in a bound: uncached tokens, blocks it may share, what it adds anywhere, and
    what makes waiting dearer for it.

    The less of it is cached, the larger `own`, `fixed` and `crowd`, the smaller `shared`.
    """

    own: float
    shared: float
    fixed: float
    crowd: float = 0.0


_DRIFT: Final = 0.02
_NOTHING: Final = Line(0.0, 0.0, 0.0, 0.0)


class LoadBounds:
    """The lines of one fleet, worker by worker. A changed load costs O(1), a question O(workers).

    The question is one list comprehension, 60 ns a worker: less than it takes to keep some hundred
    workers sorted, whose order depends on the prompt anyway. `line(state, fleet_ms_per_token)` may
    depend on the fleet's speed in proportion at most: all lines are made at one speed, `scale`
    makes up for what it changed since, and beyond 2 % they are made anew. A worker's place is its
    index in `states` and `lines`; `idle` are those whose line has nothing but a slope.
    """

    def __init__(self, line: Callable[[WorkerState, float], Line]) -> None:
        self.states: Sequence[WorkerState] = ()
        self.scale = 1.0
        self._line = line
        self.lines: list[Line] = []
        self.places: dict[WorkerId, int] = {}
        self.idle: set[WorkerId] = set()
        self._made_at = 0.0
        self._least: Line | None = None

    def update(
        self, fleet: Sequence[WorkerState], changed: Iterable[WorkerId], fleet_ms_per_token: float
    ) -> None:
        """Follow the workers whose loads or speeds `changed`; strangers are ignored.

        `fleet` is compared by identity. O(changed), or O(workers) when much is new.
        """
        drift = fleet_ms_per_token / self._made_at - 1.0 if self._made_at else 1.0
        if fleet is not self.states or abs(drift) > _DRIFT:
            self.states = fleet
            self._made_at = fleet_ms_per_token
            drift = 0.0
            self.lines = [_NOTHING] * len(fleet)
            self.places = {state.worker: place for place, state in enumerate(fleet)}
            self.idle.clear()
            changed = self.places
        self.scale = min(1.0, 1.0 + drift)
        for worker in changed:
            place = self.places.get(worker)
            if place is not None:
                line = self.lines[place] = self._line(fleet[place], self._made_at)
                if line.base or line.credit or line.wait:
                    self.idle.discard(worker)
                else:
                    self.idle.add(worker)
                self._least = None

    def least(self, extent: Extent) -> float:
        """Return a bound under what a prompt costs anywhere. O(1) while no load changes."""
        if self._least is None:
            bases, slopes, credits_, waits = zip(*self.lines, strict=True)
            self._least = Line(min(bases), min(slopes), max(credits_), min(waits))
        own, shared, fixed, crowd = extent
        base, slope, credit, wait = self._least
        return base + slope * own - min(credit, shared) + wait * crowd + fixed

    def find_least(self, extent: Extent) -> int:
        """Return the place of the worker where a prompt has the least bound."""
        own, shared, _, crowd = extent
        lows = [
            base + slope * own - (credit if credit < shared else shared) + wait * crowd  # noqa: FURB136  # 60 ns sooner than min()
            for base, slope, credit, wait in self.lines
        ]
        return lows.index(min(lows))

    def find_below(self, limit: float, extent: Extent) -> list[int]:
        """Return the places of the workers where a prompt's bound is not above `limit`."""
        own, shared, fixed, crowd = extent
        limit -= fixed
        return [
            place
            for place, (base, slope, credit, wait) in enumerate(self.lines)
            if base + slope * own - (credit if credit < shared else shared) + wait * crowd <= limit  # noqa: FURB136  # 60 ns sooner than min()
        ]
