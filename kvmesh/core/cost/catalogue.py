"""The formulas that mode kv may use, by name, each with its weights."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.core.cost.formulas import COSTS, Cost
from kvmesh.core.cost.weights import Weights
from kvmesh.errors import ConfigError


class Pricing(msgspec.Struct, frozen=True):
    """A formula and its weights: what a decision is made by."""

    cost: Cost
    weights: Weights


class Formulas:
    """The published formulas, and those of one's own that were loaded."""

    def __init__(self, own: Iterable[Cost] = ()) -> None:
        """Raises `ConfigError` for two of one name."""
        self.costs: dict[str, Cost] = dict(COSTS)
        for cost in own:
            if cost.name in self.costs:
                raise ConfigError(f"cost formula {cost.name!r}: another has that name; rename it")
            self.costs[cost.name] = cost
        self._plain = {
            cost.name: Pricing(cost, cost.weights.default) for cost in self.costs.values()
        }

    def plain(self, name: str, place: str = "kv_cost") -> Pricing:
        """Return the formula called `name` at its defaults.

        Raises `ConfigError` that names `place` and what there is.
        """
        try:
            return self._plain[name]
        except KeyError:
            known = ", ".join(self.costs)
            raise ConfigError(f"{place} {name!r} is unknown; use one of {known}") from None

    def pricing(self, name: str, weights: Mapping[str, float], place: str = "kv_cost") -> Pricing:
        """Return the formula called `name`, with these weights in place of its defaults.

        Raises `ConfigError` that names `place` and what there is.
        """
        plain = self.plain(name, place)
        return reweigh(plain, weights, place) if weights else plain


def reweigh(pricing: Pricing, weights: Mapping[str, float], place: str) -> Pricing:
    """Return a formula with these weights changed.

    Raises `ConfigError` that names `place`, the formula and the weights it has.
    """
    cost = pricing.cost
    return Pricing(cost, cost.weights.make(weights, f"{place}: {cost.name}", pricing.weights))


PUBLISHED: Final = Formulas()
"""No formula of one's own."""
