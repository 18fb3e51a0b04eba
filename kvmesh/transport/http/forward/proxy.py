"""The one way an exchange is forwarded, by router and meta-router alike.

How an answer can end early, and what the client sees:
before its first byte: another upstream is tried, at last 502 or 504;
in an event stream: an error event, then the connection is closed without the last chunk, so that
neither a client that reads events nor one that reads HTTP takes the answer for whole;
a request whose body has ended two upstreams within a minute is refused (422), whoever sends it;
in any other answer: the connection is closed without the last chunk, or short of its length.
"""

from typing import Final

from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import ForwardOptions, ForwardPlan, Outcome, Target, Wait
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

__all__ = ["Forward", "ForwardOptions", "ForwardPlan", "Outcome", "Target", "Wait", "forward"]

DEFAULT_OPTIONS: Final = ForwardOptions()
_POISON: Final = Problem(
    422,
    "this very request ended two workers within the last minute: do not send it",
    "poison",
    final=True,
)


def forward(
    exchange: Exchange,
    plan: ForwardPlan,
    pool: UpstreamPool,
    options: ForwardOptions = DEFAULT_OPTIONS,
    *,
    stream: bool = False,
) -> Forward:
    """Answer `exchange` with an upstream's response; returns at once.

    `stream`: the client asked for an event stream (only `comments_s` needs to know).
    """
    forwarding = Forward(exchange, plan, pool, options)
    if pool.refuses(exchange.request.body):
        exchange.fail(_POISON)
        plan.on_finish(Outcome("refused", exchange.status, 0))
    else:
        forwarding.begin(stream=stream)
    return forwarding
