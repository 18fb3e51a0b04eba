"""Workers that leave: what only they keep and will be asked for, so that others would compute it
again.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import exp
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import graded_depth
from kvmesh.core.cost.terms import Candidate as CostCandidate
from kvmesh.core.routing.decision import Decision
from kvmesh.core.warming.kept_prompts import FRESH_S, Kept, P
from kvmesh.core.warming.plan import Candidate

WITHIN_S: Final = FRESH_S
"""What is asked for so soon would be computed again."""


def worth_moving(
    prompt: Kept[P], held: Mapping[WorkerId, int], leaver: WorkerId, leaving: Collection[str]
) -> Candidate[P] | None:
    """Return a prompt of which workers have `held` blocks, to be planned for who stays; None: they
    have as much of it, or another one `leaving` has more, or as much and comes first by name.
    O(workers that hold any of it).
    """
    stays = max((blocks for one, blocks in held.items() if one not in leaving), default=0)
    leaves = ((-blocks, one) for one, blocks in held.items() if one in leaving and blocks > stays)
    _, first = min(leaves, default=(0, None))
    return Candidate(prompt, stays, 0) if first == leaver else None


def next_home(decision: Decision, given: Mapping[WorkerId, int]) -> CostCandidate:
    """Return the worker that was chosen for a prompt; of equals the one that was `given` the least,
    tokens.
    """
    scored = zip(decision.candidates, decision.scores, strict=True)
    equals = [one for one, score in scored if score == decision.score]
    return min(equals, key=lambda one: given.get(one.worker, 0), default=decision.chosen)


class Losses:
    """Sums what is expected back of the prompts that are added, `tokens` by the one worker that
    keeps them.

    Of what several prompts share each block counts once. `rates` are `KeptPrompts.rates`; what
    workers keep that are `leaving` is with nobody soon.
    """

    def __init__(
        self, rates: Mapping[bytes, float], leaving: Collection[str], block_size: int
    ) -> None:
        self.tokens: defaultdict[WorkerId, float] = defaultdict(float)
        self._rates = rates
        self._leaving = leaving
        self._size = block_size
        self._counted: set[tuple[WorkerId, bytes]] = set()

    def add(self, prompt: Kept[P], held: Mapping[WorkerId, int]) -> None:
        """Count a prompt of which workers have `held` blocks. O(workers that hold any of it, and
        the graded blocks that one of them holds alone).
        """
        staying = sorted(blocks for one, blocks in held.items() if one not in self._leaving)
        best, second = ([0, 0, *staying])[-1], ([0, 0, *staying])[-2]
        for worker, blocks in held.items():
            stays = worker not in self._leaving and blocks == best
            others = second if stays else best
            if blocks > others:
                lost = self._lost(prompt, worker, others, blocks)
                self.tokens[worker] += self._size * lost

    def _lost(self, prompt: Kept[P], worker: WorkerId, first: int, last: int) -> float:
        """Return how many of the blocks from `first` to `last` are expected to be asked for."""
        lost, above = 0.0, 0
        for number, key in enumerate(prompt.marks, start=1):
            below = graded_depth(number)
            blocks = min(below, last) - max(above, first)
            above = below
            if blocks > 0 and (worker, key) not in self._counted:
                self._counted.add((worker, key))
                lost += blocks * (1.0 - exp(-WITHIN_S * self._rates.get(key, 0.0)))
        return lost
