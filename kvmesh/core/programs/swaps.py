"""When an engine is given a turn that finds no room there, so that nobody waits without end."""

from collections.abc import Callable, Collection
from math import inf
from typing import Final

from kvmesh.core.blocks.events import WorkerId

SWAP: Final = 16.0
"""A turn goes to an engine whatever it evicts, if it waited, and the engine had no other such turn,
for so many times as long as computing its context takes there.

Of 4, 8, 12 and 16 the one with the most waiting won at five cells of the simulator
(docs/measured/programs-cost.md); without an end one turn waits for two hours.
"""


class Swaps:
    """Who was given such a turn, and when; `prefill_ms` is what a worker takes for a token."""

    def __init__(self, prefill_ms: Callable[[WorkerId], float]) -> None:
        self._prefill_ms = prefill_ms
        self._given_s: dict[WorkerId, float] = {}

    def note(self, worker: WorkerId, at_s: float) -> None:
        """Note that a worker was given one, here or by a sibling."""
        self._given_s[worker] = max(at_s, self._given_s.get(worker, -inf))

    def forget(self, worker: WorkerId) -> None:
        """Forget a worker that left."""
        self._given_s.pop(worker, None)

    def span_s(self, tokens: int, worker: WorkerId | None) -> float:
        """Return how long a worker is left in peace for a context of so many tokens, s."""
        return 0.0 if worker is None else SWAP * tokens * self._prefill_ms(worker) / 1000.0

    def due(
        self, tokens: int, since_s: float, workers: Collection[WorkerId], home: WorkerId | None
    ) -> tuple[float, WorkerId | None]:
        """Return when a turn goes that has waited since then, and where: at home, where that is as
        soon.
        """
        due_s, place = inf, None
        for worker in workers:
            begin_s = max(since_s, self._given_s.get(worker, -inf))
            one_s = begin_s + self.span_s(tokens, worker)
            if one_s < due_s or (one_s == due_s and worker == home):
                due_s, place = one_s, worker
        return due_s, place

    def bound_s(self, before: int, tokens: int, workers: Collection[WorkerId]) -> float:
        """Return how long a turn waits at most while contexts of `before` tokens wait already: they
        go before it, one at a time a worker.
        """
        slowest = max(workers, key=self._prefill_ms, default=None)
        return self.span_s(1, slowest) * (before / max(1, len(workers)) + tokens)
