"""Looks at all programs once a second, in spare time, for whoever asks what there is."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from kvmesh.app.views.program_rows import Programs, check
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.tasks import to_next

CHECK_EVERY_S: Final = 1.0


class ProgramWatch:
    """What a governor knew of programs at most some seconds ago. `workers` are those there now."""

    def __init__(
        self,
        governor: Governor,
        bucket: str,
        workers: Callable[[], Iterable[WorkerId]],
        clock: Callable[[], float],
    ) -> None:
        self.governor = governor
        self.seen = Programs()
        self._bucket = bucket
        self._workers = workers
        self._clock = clock

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(to_next(CHECK_EVERY_S))

    async def refresh(self) -> None:
        """Look at all programs now; others get their turn between."""
        steps = check(self.governor, tuple(self._workers()), self._bucket, self._clock())
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.seen = done.value
                return
            await asyncio.sleep(0)

    def longest_wait_s(self) -> float:
        """Return for how long the turn that waits longest here is held now, s; 0 for none."""
        now = self._clock()
        since_s, _ = self._longest(now)
        return max(0.0, now - since_s)

    def bound_s(self) -> float:
        """Return how long the turn that is held longest waits at most, s; 0.0: none is held."""
        since_s, until_s = self._longest(self._clock())
        return until_s - since_s

    def _longest(self, now: float) -> tuple[float, float]:
        return min(self.governor.waiting.since().values(), default=(now, now))
