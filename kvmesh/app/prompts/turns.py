"""Whose turn a request is: from what its client says to what the governor of programs asks."""

from math import inf
from typing import Final

from kvmesh.app.prompts.request_wishes import HeadWishes, RequestWishes
from kvmesh.app.prompts.turn_names import TurnNames
from kvmesh.core.programs.turn import Turn

_HELD_SHARE: Final = 0.5
"""A request is held for this share of the time that its client waits at most; the rest is left for
its answer.
"""


def turn_of(
    names: TurnNames, request_id: str, prompt_tokens: int, wishes: HeadWishes | RequestWishes
) -> Turn:
    """Return the turn of a request. Of its answer only what its client expects counts: what it
    allows at most is no estimate.
    """
    if isinstance(wishes, HeadWishes):
        priority, output_tokens = 0, 0
    else:
        priority, output_tokens = wishes.priority, wishes.output_tokens or 0
    timeout_s = wishes.timeout_s
    return Turn(
        request_id=request_id,
        agent=names.agent,
        program=names.program,
        client=names.client,
        tenant=wishes.tenant,
        priority=priority,
        prompt_tokens=prompt_tokens,
        expected_output_tokens=output_tokens,
        final=names.final,
        patience_s=inf if timeout_s is None else timeout_s * _HELD_SHARE,
    )
