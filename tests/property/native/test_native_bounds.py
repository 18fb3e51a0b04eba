"""Numbers at the ends of what the border lets in, no sum overflows."""

from typing import Final

import pytest

from kvmesh._native import ActiveSequences
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import MOST_TOKENS, Demand, new_sequences
from kvmesh.core.routing import event_fold
from kvmesh.settings.types import MOST_BLOCK_TOKENS

U64: Final = 2**64 - 1
W: Final = WorkerId("w")
MOST_AT_ONCE: Final = event_fold.MOST_IN_ALL
FIGURES: Final = (
    *("prefill_tokens", "prompt_tokens", "active_requests", "active_blocks", "expected_blocks"),
)


def fill(active: ActiveSequences) -> tuple[list[int], list[int]]:
    """Book a few of the largest requests, and have an engine report the most there can be."""
    for number in range(8):
        active.add(str(number), W, Demand(MOST_TOKENS, MOST_TOKENS, MOST_TOKENS), 0.0)
        active.grow(str(number), 2**62, 1.0)
    active.correct(W, MOST_TOKENS, MOST_TOKENS, MOST_TOKENS)
    full = [getattr(active.loads(W), name) for name in FIGURES]
    for number in range(8):
        active.finish(str(number))
    active.correct(W, 0, 0, 0)
    return full, [getattr(active.loads(W), name) for name in FIGURES]


@pytest.mark.parametrize("block_size", [1, 16, MOST_BLOCK_TOKENS])
def test_the_largest_bookings_and_reports_add_up_and_to_nothing_again(
    block_size: int,
) -> None:
    full, left = fill(new_sequences(block_size))

    blocks = -(-MOST_TOKENS // block_size)
    assert full[:2] == [9 * MOST_TOKENS, (8 + block_size) * MOST_TOKENS]
    assert full[2:] == [8 + MOST_TOKENS, 16 * blocks + MOST_TOKENS, 0]
    assert left == [0] * len(FIGURES)
    # As many as may be booked at once are still within 63 bits.
    assert full[0] // 8 * MOST_AT_ONCE + MOST_TOKENS < 2**63


@pytest.mark.parametrize("tier", [0, 3, 4, 255])
def test_hashes_at_the_ends_of_their_range_are_indexed(tier: int) -> None:
    index = KvIndex()

    kept_out = index.store(W, ROOT, pack_hashes([U64, 1, U64 - 1]), tier)
    behind = index.store(W, U64 - 1, pack_hashes([2]), tier)
    unknown = index.store(W, 2**63, pack_hashes([3]), tier)
    index.remove(W, pack_hashes([U64, 7]), tier)

    assert (kept_out, behind) == (0, 0)
    assert unknown == (0 if tier > 3 else 1)
    assert index.worker_digest(W) <= U64
