"""Turns of programs on the compiled way: who may take it, and whose turn a placed request is."""

from kvmesh.app.prompts.reading import Readable, turn_of
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.hashing import TOKEN_BYTES
from kvmesh.core.dispatch.compiled import Placed
from kvmesh.core.programs.turn import Turn


def may_pass(context: RoutingContext, read: Readable, body: bytes, now: float) -> bool:
    """Return whether a request may be decided without that the governor is asked about it.

    Its prompt counts with the most that it may be. One that is short, and that nobody names, is
    nobody's turn.
    """
    if not context.gate.follows:
        return True
    _, packed, head = read
    tokens, turns = (
        len(body) if packed is None else len(packed) // TOKEN_BYTES,
        context.routing.turns,
    )
    if head.names is not None:
        return turns.passes(head.names.agent, tokens, now)
    return tokens < turns.chains.options.least_tokens or turns.passes("", tokens, now)


def turn_of_placed(
    context: RoutingContext, read: Readable, placed: Placed, now: float
) -> Turn | None:
    """Return whose turn a request is that was decided; None: nobody's."""
    if not context.gate.follows:
        return None
    head, turns = read[2], context.routing.turns
    if head.names is not None:
        return turn_of(head.names, placed.request_id, placed.prompt_tokens, head)
    if placed.prompt_tokens < turns.chains.options.least_tokens:
        return None
    return turns.follow_placed(placed, head.tenant, now)
