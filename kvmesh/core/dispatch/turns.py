"""What the governor of programs is asked and told of requests on their way."""

from collections import OrderedDict
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.chains import ChainOptions, Chains
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.workers.block_sizes import DEFAULT_BLOCK_SIZE

SPARED: Final = 0.05
"""So much of a context may be computed again without that any of it was evicted."""

HELD_SHARE: Final = 0.5
"""A request is held for this share of the time that its client waits at most; the rest is left for
its answer.
"""

_UNREPORTED: Final = Usage()


class _Prompt(NamedTuple):
    worker: WorkerId
    tokens: int


class Turns:
    """Tells the `governor` of each turn that begins, and of its end; None: there are no turns.

    A prompt that goes on from the last one of its agent, at the same worker, and found less of it
    cached than that was long, lost the rest to others in between: the governor is told of that,
    too. Remembered are the last prompts of as many agents as the governor follows. `chains` are
    those of agents that nobody names.
    """

    def __init__(self, governor: Governor | None, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        self.governor = governor
        self.chains = Chains(ChainOptions(), block_size)
        self._last: OrderedDict[str, _Prompt] = OrderedDict()

    def may_hold(self, turn: Turn, now: float) -> bool:
        """Return whether the governor has to be asked before a turn may be taken."""
        tokens = turn.prompt_tokens + turn.expected_output_tokens
        return turn.patience_s > 0.0 and not self.passes(turn.agent, tokens, now)

    def passes(self, agent: str, tokens: int, now: float) -> bool:
        """Return whether an agent with so long a context may take a turn wherever it likes."""
        return self.governor is None or self.governor.passes(agent, tokens, now)

    def may_place(self, agent: str, tokens: int, now: float) -> bool:
        """Return whether a request may be placed before it is known whose turn it is. `agent` is
        the key that its client names, "" for none.
        """
        governor = self.governor
        if governor is None:
            return True
        if not agent and (tokens < self.chains.options.least_tokens or not len(governor.table)):
            return True
        return governor.passes(agent, tokens, now)

    def follow(self, request: RouteRequest, now: float) -> RouteRequest:
        """Return a request that names no agent with its turn, if its prompt goes on from another:
        to be asked once a request.
        """
        turn = self.of_chain(
            request.request_id, request.hashes, request.tenant, request.prompt_tokens, now
        )
        if turn is None:
            return request
        timeout_s = request.timeout_s
        patience_s = inf if timeout_s is None else timeout_s * HELD_SHARE
        turn = replace(turn, priority=request.priority, patience_s=patience_s)
        return replace(request, turn=turn)

    def of_chain(
        self, request_id: str, hashes: Hashes, tenant: str, tokens: int, now: float
    ) -> Turn | None:
        """Note a prompt whose client names no agent; return whose turn it is, if it is any's."""
        if self.governor is None:
            return None
        key = self.chains.learn(hashes, tenant, now)
        if key is None:
            return None
        return Turn(
            request_id=request_id,
            agent=key,
            program=key,
            client="chain",
            tenant=tenant,
            prompt_tokens=tokens,
        )

    def begin(self, turn: Turn, worker: WorkerId, now: float) -> None:
        """Note that a turn which nobody was asked about is taken at `worker`."""
        if self.governor is not None:
            self.governor.chosen(turn, worker, now)

    def end(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that a turn is over."""
        governor = self.governor
        if governor is None:
            return
        if end.served:
            last = self._last.pop(turn.agent, None)
            if last is not None and last.worker == end.worker:
                lost = _lost_tokens(last.tokens, turn.prompt_tokens, end.computed_tokens)
                if lost:
                    governor.lost(end.worker, turn.agent, lost, now)
            self._last[turn.agent] = _Prompt(end.worker, turn.prompt_tokens)
            if len(self._last) > governor.options.max_agents:
                self._last.popitem(last=False)
        governor.ended(turn, end, now)


def _lost_tokens(before: int, prompt: int, computed: int) -> int:
    """Return how much of a context was gone. A shorter prompt is another context; engines reuse
    whole blocks, and often leave out the last one or two.
    """
    gone = before - (prompt - computed)
    return gone if prompt >= before and gone > SPARED * before else 0


def turn_served(
    worker: WorkerId, usage: Usage | None, output_tokens: int, uncached_tokens: int
) -> TurnEnd:
    """Return how a turn that was served ended: as the engine reported, else as was counted and
    predicted.
    """
    if usage is None:
        usage = _UNREPORTED
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
