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
from kvmesh.core.programs.waiting import held_share_s
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import patience_s

WHOLE_HELD_S: Final = 30.0
"""A client of a whole answer sees nothing while its request is held, nor does a proxy before it:
many give up after a minute. For so long those are held that do not say for how long they wait.
"""


def may_pass(context: RoutingContext, read: Readable, body: bytes, now: float) -> bool:
    """Return whether a request may be decided without that the governor is asked about it.

    Its prompt counts with the most that it may be. One that is short, and that nobody names, is
    nobody's turn.
    """
    turns, asked, wishes = context.routing.turns, read.asked, read.wishes
    if not context.gate.follows or turns.governor is None:
        return True
    tokens = len(body) if asked.packed is None else len(asked.packed) // TOKEN_BYTES
    tokens += wishes.output_tokens or 0
    if wishes.names is not None:
        return turns.governor.passes(wishes.names.agent, tokens, now)
    return tokens < turns.chains.least_tokens or turns.governor.passes("", tokens, now)


def begin_turn(context: RoutingContext, read: Readable, placed: Placed, now: float) -> Turn | None:
    """Return the turn that a decided request belongs to, and note that it is taken; None: it
    belongs to no agent.
    """
    if not context.gate.follows:
        return None
    wishes, turns, record = read.wishes, context.routing.turns, placed.record
    if wishes.names is not None:
        turn = turn_of(wishes.names, placed.request_id, placed.prompt_tokens, wishes)
    elif placed.prompt_tokens >= turns.chains.least_tokens:
        found = turns.follow_placed(placed, wishes.tenant, wishes.priority, now)
        if found is None:
            return None
        turn = found
    else:
        return None
    turns.begin(turn, record.worker, now, asked=record.held_ms is not None)
    return turn


def bound_turn(context: RoutingContext, request: RouteRequest, exchange: Incoming) -> RouteRequest:
    """Return the request with a turn that waits no longer than its client may be kept waiting: a
    part of the time that it announces for its answer, or for a byte where it is shown nothing.
    """
    turn, governor, most_s = request.turn, context.routing.turns.governor, exchange.silent_s
    if turn is None or governor is None:
        return request
    told_s, shown = request.timeout_s or inf, request.streams and most_s == inf
    if not shown:
        told_s = patience_s(exchange.request)
    if told_s < inf:
        ms_per_token = context.scheduler.speeds.fleet_ms_per_token
        most_s = min(most_s, held_share_s(governor, turn, told_s, ms_per_token))
    elif not request.streams:
        most_s = min(most_s, WHOLE_HELD_S)
    if most_s >= turn.patience_s:
        return request
    turn = msgspec.structs.replace(turn, patience_s=most_s)
    return msgspec.structs.replace(request, turn=turn)
