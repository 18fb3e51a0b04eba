"""What a request asks of its worker, and what all of them amount to."""

from typing import Final

import msgspec

from kvmesh.core.blocks.hashing import Hashes

MOST_TOKENS: Final = 1 << 40
"""More than any prompt or answer has: what a request claims beyond it is not counted."""


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What one request asks of its worker. `keys` as `graded.sharing_keys` gives them.

    `streams` False: nobody will see its first token, so the end of its prefill is inferred.
    `hashes` are the prompt's, where it is believed cached from now on: peers shall believe it too.
    Of one that a peer told of they are its graded ones, packed.
    `turn`: it went there because it was the worker's turn.
    """

    prompt_tokens: int
    uncached_tokens: int
    expected_output_tokens: int = 0
    keys: tuple[int, ...] = ()
    streams: bool = True
    hashes: Hashes | bytes | None = None
    turn: bool = False


class SequencesStatistics(msgspec.Struct, frozen=True):
    """Totals over all workers, and what ended other than by `finish`."""

    workers: int
    active_requests: int
    prefill_tokens: int
    active_blocks: int
    expired: int
    dropped_with_worker: int
    dropped_with_owner: int
