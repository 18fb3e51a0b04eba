"""A proxy under test, with a plan that does as it is told and keeps what it sees."""

import asyncio
from collections.abc import Iterable

from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import ForwardOptions, Outcome, Target, Wait
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamOptions, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem
from tests.integration.http.peers import Front, Upstream

Step = Target | Problem | Wait | None


class Plan:
    """Gives out `steps`, then None."""

    def __init__(self, steps: Iterable[Step], *, allow: bool = True) -> None:
        self._steps = list(steps)
        self._allow = allow
        self.failures: list[UpstreamFailure] = []
        self.added: Headers = ((b"x-kvmesh-worker", b"w1"),)
        self.heads: list[int] = []
        self.tokens: list[int] = []
        self.outcomes: list[Outcome] = []
        self.finished = asyncio.Event()

    def next_target(self) -> Step:
        return self._steps.pop(0) if self._steps else None

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        self.failures.append(failure)
        return self._allow

    def on_head(self, status: int) -> Headers:
        self.heads.append(status)
        return self.added

    def on_tokens(self, tokens: int) -> None:
        self.tokens.append(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.finished.set()

    async def outcome(self) -> Outcome:
        """Wait for the end; a second one is an error."""
        await asyncio.wait_for(self.finished.wait(), 60)
        await asyncio.sleep(0.01)
        (outcome,) = self.outcomes
        return outcome


class Proxy:
    """A server that forwards each exchange by the next of `plans`, default: to the upstream."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.pool = UpstreamPool()
        self.options = ForwardOptions()
        self.stream = False
        self.plans: list[Plan] = []
        self.used: list[Plan] = []
        self.forwards: list[Forward] = []
        self.exchanges: list[Exchange] = []
        self.server = HttpServer(self.handle)

    async def start(
        self,
        fronts: Front,
        *,
        limits: HttpLimits | None = None,
        upstreams: UpstreamOptions | None = None,
    ) -> None:
        """Listen."""
        self.pool = UpstreamPool(options=upstreams)
        self.server = await fronts.serve(self.handle, limits=limits)

    def plan(self, *steps: Step, allow: bool = True) -> Plan:
        """Forward the next exchange by these steps."""
        plan = Plan(steps or [Target(self._upstream.origin)], allow=allow)
        self.plans.append(plan)
        return plan

    def handle(self, exchange: Exchange) -> None:
        """Forward an exchange by the next plan."""
        plan = self.plans.pop(0) if self.plans else Plan([Target(self._upstream.origin)])
        self.used.append(plan)
        self.exchanges.append(exchange)
        forwarding = Forward(exchange, self.pool, self.options)
        self.forwards.append(forwarding)
        forwarding.begin(plan, stream=self.stream)
