"""A trace that is too short, made longer: it begins again, with prompts nobody has seen."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh_lab.traces.trace import TraceRequest, split_sessions

COMMON_SHARE: Final = 0.02
COMMON_CHAINS: Final = 4
"""Blocks of so large a share, and at least so many, of all sessions (or requests without one) are
system prompts: these come again as they are."""


def repeat_requests(requests: Sequence[TraceRequest], count: int) -> list[TraceRequest]:
    """Return `count` requests: the trace, then all of it again as often as it takes.

    Rounds follow each other at the mean pace of the trace. Their blocks are new ones, but for those
    that many share; sessions and programs get new names.
    """
    made = list(requests[:count])
    if len(made) == count:
        return made
    common = common_blocks(requests)
    blocks = 1 + max((block for one in requests for block in one.block_ids), default=0)
    indices = 1 + max(one.index for one in requests)
    first, last = requests[0].timestamp_ms, requests[-1].timestamp_ms
    length_ms = (last - first) * (1.0 + 1.0 / max(1, len(requests) - 1))
    while len(made) < count:
        number = len(made) // len(requests)
        for one in requests[: count - len(made)]:
            ids = tuple(
                block if block in common else block + number * blocks for block in one.block_ids
            )
            again = msgspec.structs.replace(
                one,
                index=one.index + number * indices,
                timestamp_ms=one.timestamp_ms + number * length_ms,
                block_ids=ids,
                session=_again(one.session, number),
                parent=_again(one.parent, number),
                program=_again(one.program, number),
                after=None if one.after is None else one.after + number * indices,
            )
            made.append(again)
    return made


def common_blocks(requests: Sequence[TraceRequest]) -> frozenset[int]:
    """Return the blocks that many sessions share."""
    chains = split_sessions(requests)
    counts = Counter(
        block for chain in chains for block in {block for one in chain for block in one.block_ids}
    )
    least = max(COMMON_CHAINS, COMMON_SHARE * len(chains))
    return frozenset(block for block, seen in counts.items() if seen >= least)


def _again(name: str, number: int) -> str:
    return f"{name}#{number + 1}" if name else ""
