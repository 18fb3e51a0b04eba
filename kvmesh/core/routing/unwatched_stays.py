"""How long answers take that nobody sees, learned from when they are found to be over."""

from collections.abc import Collection
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId

MOST_S: Final = 3600.0
"""No answer counts as having taken longer."""

_WEIGHT: Final = 0.05
_PLAIN_SAMPLES: Final = int(1 / _WEIGHT)


class _Means(msgspec.Struct, eq=False):
    samples: int = 0
    tokens: float = 0.0
    decode_s: float = 0.0

    def learn(self, tokens: int, decode_s: float) -> None:
        self.samples += 1
        weight = 1.0 / self.samples if self.samples < _PLAIN_SAMPLES else _WEIGHT
        self.tokens += weight * (tokens - self.tokens)
        self.decode_s += weight * (decode_s - self.decode_s)


class Stays:
    """Learns the time behind the prefill for each token that was expected, by worker.

    It is the ratio of two means, since neither is right for a single request: what was expected may
    be what a client allows, and an end is known to the interval of a report.
    """

    def __init__(self) -> None:
        self._fleet = _Means()
        self._workers: dict[WorkerId, _Means] = {}

    def learn(self, worker: WorkerId, tokens: int, decode_s: float) -> None:
        """Take an answer that was over `decode_s` behind its prefill; `tokens` were expected."""
        if tokens > 0 and 0.0 <= decode_s <= MOST_S:
            self._workers.setdefault(worker, _Means()).learn(tokens, decode_s)
            self._fleet.learn(tokens, decode_s)

    def ms_per_token(self, worker: WorkerId) -> float:
        """Return the time for each expected token, ms; the fleet's while the worker's is not known
        from `_PLAIN_SAMPLES` answers, 0 when nothing was learned.
        """
        own = self._workers.get(worker)
        means = self._fleet if own is None or own.samples < _PLAIN_SAMPLES else own
        return means.decode_s * 1000.0 / means.tokens if means.samples else 0.0

    def retain(self, workers: Collection[WorkerId]) -> None:
        """Forget all workers but these; the fleet remembers what the others contributed."""
        for worker in [one for one in self._workers if one not in workers]:
            del self._workers[worker]
