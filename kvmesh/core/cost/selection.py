"""From costs to one worker by a softmax over their range, and names in turn."""

from collections.abc import Sequence
from math import exp
from typing import Protocol


class Random(Protocol):
    """The randomness the core is given; `random.Random` is one."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


def tie_limit(best: float, margin: float) -> float:
    """Return the largest cost that counts as equal to `best`, which with a margin is >= 0."""
    return best * (1.0 + margin)


def softmax_probabilities(costs: Sequence[float], temperature: float) -> list[float]:
    """Return the probability of each index: p ~ exp(-(c - min) / ((max - min) * temperature)).

    Scale-free: with two workers the better gets 1 / (1 + e^(-1/T)) whatever the costs; equal
    costs are uniform. `temperature` > 0.
    Source: Dynamo lib/kv-router, scheduling/selector, softmax sampling.
    """
    least = min(costs)
    spread = max(costs) - least
    if spread <= 0.0:
        return [1.0 / len(costs)] * len(costs)
    weights = [exp(max(-700.0, -(cost - least) / spread / temperature)) for cost in costs]
    total = sum(weights)
    return [weight / total for weight in weights]


def choose_softmax(costs: Sequence[float], temperature: float, rng: Random) -> int:
    """Return an index drawn by `softmax_probabilities` (inverse of the cumulative sum)."""
    mark = rng.random()
    probabilities = softmax_probabilities(costs, temperature)
    for index, probability in enumerate(probabilities):
        mark -= probability
        if mark < 0.0:
            return index
    return len(probabilities) - 1


def next_in_turn(names: Sequence[str], last: str) -> str:
    """Return the name after `last` in sorted `names`, from the start behind the end.

    Members may come and go between turns: nobody is served twice before the others.
    """
    return next((name for name in names if name > last), names[0])
