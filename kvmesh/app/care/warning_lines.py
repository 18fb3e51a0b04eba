"""Warnings about workers in few lines, also where there are many workers."""

from collections.abc import Iterable
from typing import Final

from kvmesh.bounds import listed

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
