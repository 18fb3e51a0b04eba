"""What a request asks of its worker, what all of them amount to, and how fast workers are."""

from typing import Final

import msgspec

from kvmesh._native import OVERDUE as _OVERDUE
from kvmesh._native import ActiveSequences, Loads, Speeds
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.members.worker_info import LoadReport

MOST_TOKENS: Final = 1 << 40
"""More than any prompt or answer has: what a request claims beyond it is not counted."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What one request asks of its worker. `keys` as `graded.sharing_keys` gives them.

    `streams` False: nobody will see its first token, so the end of its prefill is inferred.
    `hashes` are the prompt's, where it is believed cached from now on: peers shall believe it too.
    Of one that a peer told of they are its graded ones, packed.
    `turn`: it went there because it was the worker's turn. `keep_s`: for how long its client would
    have the prompt kept, 0 where nobody said.
    """

    prompt_tokens: int
    uncached_tokens: int
    expected_output_tokens: int = 0
    keys: tuple[int, ...] = ()
    streams: bool = True
    hashes: Hashes | bytes | None = None
    turn: bool = False
    keep_s: int = 0


class SequencesStatistics(msgspec.Struct, frozen=True):
    """Totals over all workers, and what ended other than by `finish`."""

    workers: int
    active_requests: int
    prefill_tokens: int
    active_blocks: int
    expired: int
    dropped_with_worker: int
    dropped_with_owner: int


LOCAL: Final = ""
"""Owner of this replica's own bookings; a peer's carry the peer's name."""

OVERDUE: Final = _OVERDUE
"""A prefill that nobody sees end is taken for ended at so many times its expected time."""


def new_sequences(block_size: int, *, lease_s: float = 60.0) -> ActiveSequences:
    """Return sequences without any booking. Raises `ValueError`."""
    return ActiveSequences(block_size, lease_s=lease_s, statistics=SequencesStatistics)


PRIOR_MS_PER_TOKEN: Final = 0.05
"""Assumed before any first token: a mid-size model on one current GPU, ms per uncached token."""


def new_speeds() -> Speeds:
    """Return the speeds of a fleet of which nothing was seen."""
    return Speeds(PRIOR_MS_PER_TOKEN)


def foreign_load(report: LoadReport, loads: Loads, uncached_tokens: float) -> tuple[int, int, int]:
    """Return the requests, blocks and waiting tokens of an engine's report that no router booked,
    below 0 where more was booked. A waiting request is taken for an average prompt, of which
    `uncached_tokens` are not cached, where the engine does not report its tokens.
    """
    foreign = report.running_requests + report.waiting_requests - loads.booked_requests
    if report.waiting_tokens is None:
        waiting = min(report.waiting_requests - loads.waiting_requests, foreign)
        tokens = int(waiting * uncached_tokens)
    else:
        tokens = report.waiting_tokens - loads.booked_tokens
    return foreign, report.used_blocks - loads.booked_blocks, tokens
