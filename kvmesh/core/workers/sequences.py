"""What every worker has been given and has not finished yet: the router's own load view."""

from typing import Final

from kvmesh._native import OVERDUE as _OVERDUE
from kvmesh._native import ActiveSequences, WorkerTurns
from kvmesh.core.workers.loads import SequencesStatistics

LOCAL: Final = ""
"""Owner of this replica's own bookings; a peer's carry the peer's name."""

OVERDUE: Final = _OVERDUE
"""A prefill that nobody sees end is taken for ended at so many times its expected time."""


def new_sequences(block_size: int, *, lease_s: float = 60.0) -> ActiveSequences:
    """Return sequences without any booking. Raises `ValueError`."""
    return ActiveSequences(
        block_size, lease_s=lease_s, turns=WorkerTurns, statistics=SequencesStatistics
    )
