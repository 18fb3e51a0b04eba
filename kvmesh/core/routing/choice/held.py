"""Held requests with targets: those that would begin too late are refused while they wait."""

from collections.abc import Collection
from heapq import heappop, heappush
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.choice.slo_judge import SloJudge
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import Forecast
from kvmesh.errors import UnattainableError

NOBODY: Final = WorkerId("")

HELD_SHARE: Final = 0.5
"""A request that is to begin within some time is held while its worker's backlog is longer than
this share of it: what would be late otherwise can then still go first.
"""


class HeldRequest(msgspec.Struct, frozen=True):
    """A request that is to wait: its own prefill takes `own_ms` at a worker that is free."""

    request_id: str
    targets: Targets
    priority: int
    own_ms: float


class HeldTargets:
    """Knows until when each held request may begin at the latest, and refuses it then, or at once
    if its turn will not have come by then.
    """

    def __init__(self, tracker: SloTracker, judge: SloJudge) -> None:
        self._tracker = tracker
        self._judge = judge
        self._latest: list[tuple[float, str, HeldRequest]] = []

    def __len__(self) -> int:
        return len(self._latest)

    def offer(self, held: HeldRequest, ahead_ms: float, now: float) -> UnattainableError | None:
        """Take a request that is to wait for `ahead_ms`; return why it is refused instead."""
        targets = held.targets
        self._tracker.arrive(held.request_id, targets, now)
        if targets.ttft_ms is None or not self._judge.options.refuse_below:
            return None
        left_s = self._left_s(held, now)
        if ahead_ms > 1000.0 * left_s:
            return self._refuse(held, ahead_ms, now)
        heappush(self._latest, (now + left_s, held.request_id, held))
        return None

    def too_late(
        self, waiting: Collection[str], ahead_ms: float, now: float
    ) -> list[tuple[str, UnattainableError]]:
        """Return those that cannot be served in time any more, each once. Of those that are not
        `waiting` any more nothing is said. `ahead_ms` is how long the others wait.
        """
        found: list[tuple[str, UnattainableError]] = []
        latest = self._latest
        while latest and latest[0][0] <= now:
            _, request_id, held = heappop(latest)
            if request_id in waiting:
                found.append((request_id, self._refuse(held, ahead_ms, now)))
        if not waiting:
            latest.clear()
        return found

    def _left_s(self, held: HeldRequest, now: float) -> float:
        """Return for how long a request may still wait."""
        limit_ms = held.targets.ttft_ms or 0.0
        limit_ms -= self._tracker.waited_ms(held.request_id, now)
        least = self._judge.least_chance(held.priority)
        return (self._tracker.ttft_errors.longest(limit_ms, least) - held.own_ms) / 1000.0

    def _refuse(self, held: HeldRequest, ahead_ms: float, now: float) -> UnattainableError:
        waited_ms = self._tracker.waited_ms(held.request_id, now)
        ttft_ms = waited_ms + ahead_ms + held.own_ms
        expected = Forecast(NOBODY, ttft_ms, 0.0, waited_ms, held.own_ms, 1.0)
        return self._judge.refuse(held.request_id, held.targets, expected, 0.0)
