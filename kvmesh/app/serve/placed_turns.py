"""Turns of programs: who may be placed at once, whose turn a request is, how long it waits."""

from math import inf
from typing import Final

import msgspec

from kvmesh._native import Placed
from kvmesh.app.prompts.reading import Readable
from kvmesh.app.prompts.reading_parts import turn_of
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.hashing import TOKEN_BYTES
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.decision import RouteRequest

WHOLE_HELD_S: Final = 30.0
"""A client of a whole answer sees nothing while its request is held, nor does a proxy before it:
many give up after a minute.
"""


def may_pass(context: RoutingContext, read: Readable, body: bytes, now: float) -> bool:
    """Return whether a request may be decided without that the governor is asked about it.

    Its prompt counts with the most that it may be. One that is short, and that nobody names, is
    nobody's turn.
    """
    packed, wishes = read.asked.packed, read.wishes
    if not context.gate.follows:
        return True
    tokens, turns = (
        len(body) if packed is None else len(packed) // TOKEN_BYTES,
        context.routing.turns,
    )
    tokens += wishes.output_tokens or 0
    if wishes.names is not None:
        return turns.passes(wishes.names.agent, tokens, now)
    return tokens < turns.chains.options.least_tokens or turns.passes("", tokens, now)


def turn_of_placed(
    context: RoutingContext, read: Readable, placed: Placed, now: float
) -> Turn | None:
    """Return the turn that a decided request belongs to; None: it belongs to no agent."""
    if not context.gate.follows:
        return None
    wishes, turns = read.wishes, context.routing.turns
    if wishes.names is not None:
        return turn_of(wishes.names, placed.request_id, placed.prompt_tokens, wishes)
    if placed.prompt_tokens < turns.chains.options.least_tokens:
        return None
    return turns.follow_placed(placed, wishes.tenant, wishes.priority, now)


def bound_turn(request: RouteRequest, silent_s: float) -> RouteRequest:
    """Return the request with a turn that waits no longer than its client may be kept waiting:
    `silent_s` where not even a stream shows it comments. Half of the time that its client names is
    its turn's bound already.
    """
    turn = request.turn
    if turn is None:
        return request
    most_s = inf if request.streams or request.timeout_s is not None else WHOLE_HELD_S
    most_s = min(most_s, silent_s)
    if most_s >= turn.patience_s:
        return request
    turn = msgspec.structs.replace(turn, patience_s=most_s)
    return msgspec.structs.replace(request, turn=turn)
