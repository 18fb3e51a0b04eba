"""Which build of kvmesh this process runs."""

from functools import cache
from importlib.metadata import version
from typing import Final

_MOST: Final = 64


@cache
def own_version() -> str:
    """Return the version of the installed package, as heartbeats tell it."""
    return version("kvmesh")[:_MOST]
