"""What keeping a context through a pause is worth, and whether holding pays at all."""

from math import exp, inf, log
from typing import Final

from kvmesh.core.blocks.events import WorkerId

WORTH: Final = 5.0
"""A context is kept for so many times as long as computing it again takes.

The break-even rule of renting or buying: a cache idle for longer has cost more room than it saves.
Of 1, 3, 5, 10, 30 and 1,000 the least mean session time at four cells of the simulator
(benchmarks/programs); more than 5 makes sessions longer where prefill is cheap.
"""

LEAST_TURNOVER: Final = 0.9
"""Below so much nothing is held: see `Pace.turnover`."""

_LEAST_SAMPLES: Final = 32
_FULL: Final = 128
_WEIGHT: Final = 1.0 / _FULL
_LEAST_TOKENS: Final = 16
_FORGET: Final = 1.001
_LEAST_S: Final = 0.01
_MOST_S: Final = 3600.0
_FIRST_GUESS_S: Final = 0.02


class Pace:
    """How soon turns of an agent follow each other when nothing delays them, learned.

    The time of an answer is its tokens at the best speed seen lately, so that a fleet that thrashes
    seems no slower than it could be: `token_s` a token.
    """

    def __init__(self) -> None:
        self._log_s = 0.0
        self._samples = 0
        self.token_s = _FIRST_GUESS_S
        self._answers = 0
        self._prefill_ms: dict[WorkerId, float] = {}

    def answered(
        self, worker: WorkerId, ms_per_token: float, tokens: int, duration_s: float
    ) -> None:
        """Learn how long an answer of so many tokens took, with its prefill, and what a worker was
        seen to take for an uncached prompt token, 0 before that was seen.
        """
        if ms_per_token > 0.0:
            known = self._prefill_ms
            known[worker] = min(known.get(worker, inf) * _FORGET, ms_per_token)
        if tokens >= _LEAST_TOKENS and duration_s > 0.0:
            token_s = duration_s / tokens
            self.token_s = min(token_s, self.token_s * _FORGET) if self._answers else token_s
            self._answers += 1

    def returned(self, tokens: int, pause_s: float, token_s: float) -> None:
        """Learn that the next turn came so long after an answer of so many tokens, when one took
        `token_s` at best.
        """
        cycle_s = tokens * token_s + pause_s
        if not _LEAST_S < cycle_s < _MOST_S:
            cycle_s = _MOST_S if cycle_s >= _MOST_S else _LEAST_S
        self._samples = samples = self._samples + 1
        share = _WEIGHT if samples > _FULL else 1.0 / samples
        self._log_s += (log(cycle_s) - self._log_s) * share

    @property
    def cycle_s(self) -> float:
        """Return the time from one turn's beginning to the next's, s."""
        return exp(self._log_s)

    def prefill_ms(self, worker: WorkerId, ms_per_token: float) -> float:
        """Return what a worker takes for an uncached prompt token at best, ms: measured while it is
        busy, a token seems to take longer. `ms_per_token` is what counts for an unknown one.
        """
        return self._prefill_ms.get(worker, ms_per_token)

    def forget(self, worker: WorkerId) -> None:
        """Forget a worker that left."""
        self._prefill_ms.pop(worker, None)

    def turnover(self, capacity_tokens: int, ms_per_token: float) -> float:
        """Return the share of its time an engine would compute if each turn of the contexts that
        fill its cache were computed anew: 1.0 before enough is known.

        Far below 1 recomputing costs less than waiting: nothing is held.
        """
        if self._samples < _LEAST_SAMPLES:
            return 1.0
        return capacity_tokens * ms_per_token / 1000.0 / self.cycle_s


def kept_s(tokens: int, ms_per_token: float) -> float:
    """Return how long a context of so many tokens is kept for an agent that pauses, s."""
    return WORTH * tokens * ms_per_token / 1000.0
