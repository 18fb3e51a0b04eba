"""What the governor of programs is asked and told of requests on their way."""

from collections import OrderedDict
from typing import Final, NamedTuple

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.touch import Touches
from kvmesh.core.programs.turn import Turn, TurnEnd

SPARED: Final = 0.05
"""So much of a context may be computed again without that any of it was evicted."""

_UNREPORTED: Final = Usage()


class _Prompt(NamedTuple):
    worker: WorkerId
    tokens: int


class Turns:
    """Tells the `governor` of each turn that begins, and of its end; None: there are no turns.

    A prompt that goes on from the last one of its agent, at the same worker, and found less of it
    cached than that was long, lost the rest to others in between: the governor is told of that,
    too. Remembered are the last prompts of as many agents as the governor follows.
    Ends are told to `touches`, too, where contexts are touched.
    """

    def __init__(self, governor: Governor | None) -> None:
        self.governor = governor
        self._last: OrderedDict[str, _Prompt] = OrderedDict()
        self.touches: Touches | None = None

    def may_hold(self, turn: Turn, now: float) -> bool:
        """Return whether the governor has to be asked before a turn may be taken."""
        tokens = turn.prompt_tokens + turn.expected_output_tokens
        return turn.patience_s > 0.0 and not self.passes(turn.agent, tokens, now)

    def passes(self, agent: str, tokens: int, now: float) -> bool:
        """Return whether an agent with so long a context may take a turn wherever it likes."""
        return self.governor is None or self.governor.passes(agent, tokens, now)

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
        if self.touches is not None:
            self.touches.ended(turn, end, now)


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
