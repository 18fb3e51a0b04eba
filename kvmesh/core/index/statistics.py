"""What an index tells about itself."""

import msgspec


class IndexStatistics(msgspec.Struct, frozen=True):
    """Sizes now, and counts since the start.

    `blocks` are distinct in their tier, `entries` (worker, block) pairs, both summed over tiers.
    `orphans` are blocks refused because their parent was not held, `truncated_orphans` those of
    workers that the cap had taken blocks from; `missing` are removals of blocks not held; `evicted`
    entries were given up to keep within the cap. `unclean` slots wait for `sweep`.
    `ends` are blocks that hits of the `grouped` workers end behind, distinct in their tier: they
    count for the cap as blocks do.
    `stored` and `removed` blocks are those that events named, without those cleared wholesale: what
    is told again counts again.
    """

    workers: int
    blocks: int
    entries: int
    tiers: int
    orphans: int
    truncated_orphans: int
    truncated_workers: int
    missing: int
    evicted: int
    unknown_tier: int
    unclean: int
    stored: int = 0
    removed: int = 0
    ends: int = 0
    grouped: int = 0
