"""Bounds of what the replicas of a bucket share of agents."""

from typing import Final

PROGRAM_TTL_S: Final = 2 * 3600
"""Seconds after which an agent of which nothing is told is no longer in the table: twice the time
in which 99 of 100 pauses of coding agents end.
"""

MAX_PROGRAMS: Final = 1 << 16
"""Agents in the table: the one told longest ago goes for one more."""
