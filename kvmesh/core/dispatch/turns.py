"""What the governor of programs is asked and told of requests on their way."""

import msgspec

from kvmesh._native import Placed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.chains import ChainOptions, Chains
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.touch import Touches
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.decision import RouteRequest


class Turns:
    """Tells the `governor` of each turn that begins, and of its end; None: there are no turns.

    Ends are told to `touches`, too, where contexts are touched.
    """

    def __init__(self, governor: Governor | None, block_size: int) -> None:
        self.governor = governor
        self.chains = Chains(ChainOptions(), block_size)
        self.touches: Touches | None = None

    def follow(self, request: RouteRequest, now: float) -> RouteRequest:
        """Return a request that no client names with the turn that its prompt tells: one that goes
        on from the last prompt of an agent. The prompt is noted.
        """
        if self.governor is None or request.turn is not None or request.estimated:
            return request
        agent = self.chains.learn(request.hashes, request.tenant, now)
        if agent is None:
            return request
        return msgspec.structs.replace(request, turn=_of_chain(agent, request))

    def follow_placed(self, placed: Placed, tenant: str, priority: int, now: float) -> Turn | None:
        """Do as `follow` for a request that the compiled core has decided; return its turn."""
        if placed.hashes is None:
            return None
        agent = self.chains.learn(placed.hashes, tenant, now)
        if agent is None:
            return None
        tokens = placed.prompt_tokens
        request = RouteRequest(
            placed.request_id, placed.hashes, tokens, tenant=tenant, priority=priority
        )
        return _of_chain(agent, request)

    def check(self, request: RouteRequest, now: float) -> Turn | None:
        """Return whose turn a request would be; its prompt is not noted."""
        agent = None
        if request.turn is None and not request.estimated:
            agent = self.chains.find(request.hashes, request.tenant, now)
        return request.turn if agent is None else _of_chain(agent, request)

    def may_hold(self, turn: Turn, now: float) -> bool:
        """Return whether the governor has to be asked before a turn may be taken."""
        tokens = turn.prompt_tokens + turn.expected_output_tokens
        governor = self.governor
        return governor is not None and not governor.passes(turn.agent, tokens, now)

    def begin(self, turn: Turn, worker: WorkerId, now: float, *, asked: bool = False) -> None:
        """Note that a turn is taken at `worker` which `passes`: nobody had to be asked about it;
        `asked`: it is noted as if somebody had been.
        """
        if self.governor is not None:
            if asked and self.governor.ask(turn, now) is None:
                self.governor.cancel(turn.request_id)
            self.governor.chosen(turn, worker, now)

    def end(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that a turn is over."""
        if self.governor is not None:
            self.governor.ended(turn, end, now)
            if self.touches is not None:
                self.touches.ended(turn, end, now)


def _of_chain(agent: str, request: RouteRequest) -> Turn:
    """Return the turn of an agent that only its prompts tell."""
    return Turn(
        request_id=request.request_id,
        agent=agent,
        program=agent,
        client="chain",
        tenant=request.tenant,
        priority=request.priority,
        prompt_tokens=request.prompt_tokens,
    )


def turn_served(
    worker: WorkerId, usage: Usage | None, output_tokens: int, uncached_tokens: int
) -> TurnEnd:
    """Return how a turn that was served ended: as the engine reported, else as was counted and
    predicted.
    """
    if usage is None:
        usage = Usage()
    if usage.cached_tokens is not None:
        uncached_tokens = max(0, usage.prompt_tokens - usage.cached_tokens)
    return TurnEnd(
        served=True,
        worker=worker,
        output_tokens=usage.completion_tokens or output_tokens,
        computed_tokens=uncached_tokens,
        stop=usage.stop,
        tool=usage.tool,
    )
