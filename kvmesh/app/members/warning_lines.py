"""Warnings about workers in few lines, also where there are many workers."""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Final

from kvmesh.bounds import MOST_NAMED, counted, listed
from kvmesh.core.members.url_guard import UrlGuard

NO_USABLE_WORKER: Final = "no usable worker"
NO_WORKER_ANSWERS: Final = "no worker answers"
WORKERLESS: Final = frozenset({NO_USABLE_WORKER, NO_WORKER_ANSWERS})
"""Why a replica is not ready though it is well itself: whoever asks it is told 503, and when to ask
again.
"""


def by_reason(said: Iterable[tuple[str, str]], what: str) -> tuple[str, ...]:
    """Return a line a reason: the workers it holds for, `what` is so of them, and the reason.

    `said` is (worker, reason).
    """
    workers: dict[str, list[str]] = {}
    for worker, reason in said:
        workers.setdefault(reason, []).append(worker)
    return tuple(f"{listed(names)}: {what}: {reason}" for reason, names in sorted(workers.items()))


class UrlRefusals:
    """Shows what a guard refused."""

    def __init__(self, guard: UrlGuard) -> None:
        self.guard = guard

    def refused(self) -> dict[str, str]:
        """Return the reason for each member refused of late, by name."""
        return self.guard.refused(time.monotonic())

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each member refused of late, `MOST_NAMED` at most; how many more."""
        refused = self.refused()
        lines = [
            f"{name} gets no requests: {why}; see --upstream-allow"
            for name, why in islice(refused.items(), MOST_NAMED)
        ]
        if (more := len(refused) - len(lines)) > 0:
            lines.append(
                f"no requests either for {counted(more, 'more member')}: see --upstream-allow"
            )
        return tuple(lines)
