"""The one way an exchange is forwarded, by router and meta-router alike.

How an answer can end early, and what the client sees:
before its first byte: another upstream is tried, at last 502 or 504;
in an event stream: an error event, then the connection is closed without the last chunk, so that
neither a client that reads events nor one that reads HTTP takes the answer for whole;
in any other answer: the connection is closed without the last chunk, or short of its length.
"""

from typing import Final

from kvmesh.transport.http.exchange import Exchange
from kvmesh.transport.http.forwarding import Forward
from kvmesh.transport.http.plan import ForwardOptions, Outcome, Plan, Target, Wait
from kvmesh.transport.http.upstream import UpstreamPool

__all__ = ["Forward", "ForwardOptions", "Outcome", "Plan", "Target", "Wait", "forward"]

DEFAULT_OPTIONS: Final = ForwardOptions()


def forward(
    exchange: Exchange,
    plan: Plan,
    pool: UpstreamPool,
    options: ForwardOptions = DEFAULT_OPTIONS,
    *,
    stream: bool = False,
) -> Forward:
    """Answer `exchange` with an upstream's response; returns at once.

    `stream`: the client asked for an event stream (only `comments_s` needs to know).
    """
    forwarding = Forward(exchange, plan, pool, options)
    forwarding.begin(stream=stream)
    return forwarding
