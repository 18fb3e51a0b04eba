"""Bounds of admission as the replicas of a bucket tell each other."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_COUNT, MAX_FIGURE, Figure, MaybeName

Number = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
Real = Annotated[float, Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Bounds = Annotated[dict[MaybeName, Number | Real | MaybeName], Meta(max_length=64)]


class SharedLimits(msgspec.Struct, frozen=True):
    """Bounds set at one replica, `by` its name, `at` a Unix time; `at` 0: those of its settings."""

    at: Figure = 0.0
    by: MaybeName = ""
    limits: Bounds = {}


def newest(told: Iterable[SharedLimits]) -> SharedLimits:
    """Return the last change; all replicas choose the same one of two at the same time."""
    return max(told, key=lambda one: (one.at, one.by), default=SharedLimits())
