"""Warnings about workers in few lines, also where there are many workers."""

from collections.abc import Iterable


def by_reason(said: Iterable[tuple[str, str]], what: str) -> tuple[str, ...]:
    """Return a line a reason: the workers it holds for, `what` is so of them, and the reason.

    `said` is (worker, reason).
    """
    workers: dict[str, list[str]] = {}
    for worker, reason in said:
        workers.setdefault(reason, []).append(worker)
    return tuple(
        f"{', '.join(sorted(names))}: {what}: {reason}" for reason, names in sorted(workers.items())
    )
