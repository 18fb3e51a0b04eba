"""How many turns an agent has still to take, from those it has taken."""

from itertools import pairwise
from typing import Final

from kvmesh.core.programs.turn import Client

_EDGES: Final = (0, *(1 << power for power in range(15)))
"""Turns taken at which a bucket begins: hazards are learned by powers of two."""

_SCALE: Final = 300.0
_SHAPE: Final = 5.67
"""Of the Lomax distribution with the published median, 39 turns, and 90th percentile, 150. Its mean
of further turns grows with those taken: (300 + turns) / 4.67, as long sessions go on longest.
Source: kv-cache-tester (Fox, 2026).
"""

_PULL: Final = 200.0
"""Turns by whose weight a bucket of few is drawn towards the published figures."""

_MOST: Final = 1 << 16
"""Turns a bucket weighs at most: older ones make room."""


class _Hazards:
    __slots__ = ("ends", "turns")

    def __init__(self) -> None:
        self.ends = [0.0] * len(_EDGES)
        self.turns = [0.0] * len(_EDGES)


class TurnsLeft:
    """By client kind: how likely each number of turns is the last. O(buckets) a question."""

    def __init__(self) -> None:
        self._clients: dict[Client, _Hazards] = {}

    def learn(self, client: Client, turns: int) -> None:
        """Take an agent that has ended after so many turns; 0 tells nothing."""
        if turns < 1:
            return
        turns = min(turns, _EDGES[-1])
        known = self._clients.setdefault(client, _Hazards())
        for at, edge in enumerate(_EDGES[:-1]):
            seen = min(turns, _EDGES[at + 1] - 1) - edge + (edge > 0)
            if seen <= 0:
                continue
            if known.turns[at] + seen > _MOST:
                kept = max(0.0, _MOST - seen) / known.turns[at]
                known.turns[at] *= kept
                known.ends[at] *= kept
            known.turns[at] += seen
            known.ends[at] += edge <= turns < _EDGES[at + 1]

    def expect(self, client: Client, turns: int, *, final: bool = False) -> float:
        """Return how many turns are expected after `turns`; 0 for an agent that said `final`."""
        if final:
            return 0.0
        known = self._clients.get(client)
        taken = min(max(0, turns), _EDGES[-1])
        left, here = 0.0, 1.0
        for at, (edge, end) in enumerate(pairwise(_EDGES)):
            if end > taken:
                start = max(edge, taken)
                goes_on = 1.0 - _hazard(known, at, 0.5 * (start + end))
                rest = goes_on ** (end - start)
                left += here * goes_on * (1.0 - rest) / (1.0 - goes_on)
                here *= rest
        goes_on = 1.0 - _hazard(known, len(_EDGES) - 1, taken)
        return left + here * goes_on / (1.0 - goes_on)


def _hazard(known: _Hazards | None, at: int, turns: float) -> float:
    """Return how likely a turn of a bucket is the last; where little is known, of so many turns."""
    prior = _SHAPE / (_SCALE + turns)
    if known is None:
        return prior
    return (known.ends[at] + _PULL * prior) / (known.turns[at] + _PULL)
