"""Warnings about workers in few lines, also where there are many workers."""

from collections.abc import Iterable
from typing import Final

NO_USABLE_WORKER: Final = "no usable worker"
NO_WORKER_ANSWERS: Final = "no worker answers"
WORKERLESS: Final = frozenset({NO_USABLE_WORKER, NO_WORKER_ANSWERS})
"""Why a replica is not ready though it is well itself: whoever asks it is told 503, and when to ask
again.
"""

MOST_NAMED: Final = 8
"""Workers named in a line; the others are counted."""


def by_reason(said: Iterable[tuple[str, str]], what: str) -> tuple[str, ...]:
    """Return a line a reason: the workers it holds for, `what` is so of them, and the reason.

    `said` is (worker, reason).
    """
    workers: dict[str, list[str]] = {}
    for worker, reason in said:
        workers.setdefault(reason, []).append(worker)
    return tuple(
        f"{_name(sorted(names))}: {what}: {reason}" for reason, names in sorted(workers.items())
    )


def _name(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    named = ", ".join(names[:MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
