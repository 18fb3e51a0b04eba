"""What the governor of programs is asked and told of requests on their way."""

from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.turn import Turn, TurnEnd

_UNREPORTED: Final = Usage()


class Turns:
    """Tells the `governor` of each turn that begins, and of its end; None: there are no turns."""

    def __init__(self, governor: Governor | None) -> None:
        self.governor = governor

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
        if self.governor is not None:
            self.governor.ended(turn, end, now)


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
