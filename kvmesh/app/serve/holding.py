"""How a request waits for its turn at the gate, and what its client is told of that."""

from functools import partial
from math import inf
from typing import Final

from kvmesh.app.serve.admission import Notify
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.settings.requests import COMMENT_S
from kvmesh.transport.http.forward.plan import NO_HOLD, Forwarding, Wait
from kvmesh.transport.http.server.request import Request

REFUSED_SHARE: Final = 0.9
"""Who is shown nothing while its request is queued gets a refusal before it gives up: after so much
of the time that it waits.
"""

LOOK_S: Final = 0.1
"""So soon behind its time a held request goes: the gate looks that often at least."""


def may_wait(request: Request) -> bool:
    """Return whether a request may wait while nobody can take it (no `NO_HOLD`)."""
    return request.header(NO_HOLD[0]) != NO_HOLD[1]


def wait_at_gate(
    context: RoutingContext,
    request: RouteRequest,
    forwarding: Forwarding,
    left_s: float,
    notify: Notify,
) -> Wait:
    """Have `notify` called when the turn comes of a request that is held; return what its client is
    told. One that is shown nothing meanwhile waits for a part of the `left_s` of its time at most.
    """
    binding, now = context.routing.binding, context.clock()
    request_id = request.request_id
    shown = request.streams and forwarding.exchange.silent_s == inf
    most_s = inf if shown else REFUSED_SHARE * left_s
    until_s = now + binding.bound_s(request_id, most_s, now)
    context.gate.wait(request_id, forwarding.scope, notify)
    # Before long it is refused if its target cannot be met: a status says that to more clients.
    targets = None if request_id in binding.governed else request.targets
    soon = targets is not None and (targets.ttft_ms or inf) <= COMMENT_S * 1000.0
    return Wait(partial(_waits_s, context, request_id, until_s), context.fixed_headers, quiet=soon)


def _waits_s(context: RoutingContext, request_id: str, until_s: float) -> tuple[float, float]:
    """Return for how long a request is expected to wait on, and for how long at most, s."""
    now = context.clock()
    most_s = max(0.0, until_s - now) + LOOK_S
    return min(context.routing.binding.expected_wait_s(request_id, now), most_s), most_s
