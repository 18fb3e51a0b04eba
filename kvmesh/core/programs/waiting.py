"""How long a turn that is held is expected to wait, and how long its client may be kept waiting."""

from itertools import takewhile
from typing import Final

from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.turn import Turn

HELD_SHARE: Final = 0.5
"""Whoever announces for how long it waits is held for this share of it at most: the rest, or what
its answer is expected to take if that is more, is left for the answer.
"""


def expected_wait_s(governor: Governor, request_id: str, ms_per_token: float, now: float) -> float:
    """Return how long a held turn is expected to wait from now on: each engine computes one context
    after the other anew, a token in `ms_per_token`. O(held turns). Raises `KeyError` for another.
    """
    turn = governor.waiting[request_id].turn
    before = sum(1 for _ in takewhile(request_id.__ne__, governor.waiting))
    engines = max(1, len(governor.workers(now)))
    return (before + 1) * turn.prompt_tokens * ms_per_token / 1000.0 / engines


def held_share_s(governor: Governor, turn: Turn, patience_s: float, ms_per_token: float) -> float:
    """Return for how long a turn may be held if its client waits `patience_s` for its answer, and
    an engine computes a prompt token in `ms_per_token`.
    """
    answer_s = turn.prompt_tokens * ms_per_token / 1000.0
    answer_s += turn.expected_output_tokens * governor.pace.token_s
    return max(0.0, min(patience_s * HELD_SHARE, patience_s - answer_s))
