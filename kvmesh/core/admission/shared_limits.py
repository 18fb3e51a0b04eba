"""Bounds of admission as the replicas of a bucket tell each other."""

from collections.abc import Iterable

import msgspec


class SharedLimits(msgspec.Struct, frozen=True):
    """Bounds set at one replica, `by` its name, `at` a Unix time; `at` 0: those of its settings."""

    at: float = 0.0
    by: str = ""
    limits: dict[str, int | float | str] = {}


def newest(told: Iterable[SharedLimits]) -> SharedLimits:
    """Return the last change; all replicas choose the same one of two at the same time."""
    return max(told, key=lambda one: (one.at, one.by), default=SharedLimits())
