"""An index of what workers probably hold: what was sent to them lately."""

from typing import Final

import msgspec

from kvmesh._native import Approx

DEFAULT_TTL_S: Final = 120.0
DEFAULT_MAX_ENTRIES: Final = 1 << 20
PRUNE_TARGET: Final = 0.8
_LONGEST_TICK_S: Final = 8.0
_LRU_TICK_S: Final = 1.0
_KEEP_GRADED: Final = 2


class ApproxStatistics(msgspec.Struct, frozen=True):
    """Sizes now, and counts of entries since the start. An entry is a (worker, block) pair.

    `expired` entries outlived their TTL, `pruned` fell to the size cap, `displaced` to a worker's
    capacity, `revoked` to news that it was removed.
    """

    workers: int
    blocks: int
    entries: int
    expired: int
    pruned: int
    displaced: int
    revoked: int


def new_approx(
    ttl_s: float = DEFAULT_TTL_S,
    *,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    prune_target: float = PRUNE_TARGET,
    worker_blocks: int | None = None,
    thinned: bool = False,
    graded: bool = False,
) -> Approx:
    """Return an empty index that believes a prompt cached where it was sent, for a while.

    It needs no events at all. An entry lives for its TTL after the last prompt that covered it, up
    to 1/16 of it longer (at most 8 s): prompts of one such tick share their work. Above
    `max_entries` the entries that end first go, down to `prune_target` of it, in slices. With
    `worker_blocks` each worker also loses its least recently used blocks beyond that many, to the
    second: use a long TTL for a pure LRU.

    `thinned`: of a prompt longer than 128 blocks only some are kept, each of the first 128, then
    each 16th, and the last one: 511 entries for 6,250 new ones; what is found may be 15 blocks too
    few, less than a prefill step takes. `graded`: of every prompt only the graded blocks are
    (`core.blocks.graded`), 55; sizes count those. A block's hash stands for all before it, so
    nothing wrong is ever believed. An entry takes 86 to 118 B.
    """
    return Approx(
        ApproxStatistics,
        ttl_s,
        (max_entries, int(max_entries * prune_target), worker_blocks),
        _LONGEST_TICK_S if worker_blocks is None else _LRU_TICK_S,
        _KEEP_GRADED if graded else int(thinned),
    )
