"""Which build of kvmesh this process runs."""

import platform
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.formats import KINDS, OWN, Formats
from kvmesh.version import VERSION

UNTOLD: Final = "untold"
"""In place of the version of a member that tells none: older ones did not."""

_MOST: Final = 64


class Build(msgspec.Struct, frozen=True):
    """`formats` are those it reads and can write."""

    version: str
    python: str
    formats: Formats

    def __str__(self) -> str:
        """Return it in a line, as `kvmesh --version` prints it."""
        return f"{self.version}, Python {self.python}, formats: {in_words(self.formats)}"


def own_version() -> str:
    """Return the version of this package, as heartbeats tell it."""
    return VERSION[:_MOST]


def own_build() -> Build:
    """Return what this process runs."""
    return Build(own_version(), platform.python_version(), OWN)


def in_words(formats: Formats) -> str:
    """Return all ranges in a line: `journal 1, bookings 1 to 2, …`."""
    return ", ".join(f"{kind} {formats.of(kind)}" for kind in KINDS)


def count_versions(reported: Iterable[str]) -> dict[str, int]:
    """Return how many of `reported` versions are of each; one that is not told is `UNTOLD`."""
    counts: dict[str, int] = {}
    for one in reported:
        counts[one or UNTOLD] = counts.get(one or UNTOLD, 0) + 1
    return counts
