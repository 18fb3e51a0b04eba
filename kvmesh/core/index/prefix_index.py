"""What routing asks of any index of prefixes."""

from typing import Protocol

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes

Groups = list[tuple[int, tuple[WorkerId, ...]]]
"""Disjoint (depth in blocks, workers), deepest first, depth > 0."""


class PrefixIndex(Protocol):
    """What routing asks of an index: how much of a prompt each worker holds."""

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it."""
        ...

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return the same by depth, so that a caller need not look at every worker."""
        ...
