"""The formulas that mode kv may use, by name, each with its weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.bounds import shown
from kvmesh.core.cost.formulas import COSTS, Cost
from kvmesh.core.cost.own import OwnFormula
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

    def own(self) -> list[OwnFormula]:
        """Return the formulas of one's own."""
        found = (cost.formula for cost in self.costs.values())
        return [one for one in found if isinstance(one, OwnFormula)]

    def plain(self, name: str, place: str = "kv_cost") -> Pricing:
        """Return the formula called `name` at its defaults.

        Raises `ConfigError` that names `place` and what there is.
        """
        try:
            return self._plain[name]
        except KeyError:
            known = ", ".join(self.costs)
            hint = "; a file is read only where its operator names it" if ".py:" in name else ""
            raise ConfigError(
                f"{place} {shown(name)} is unknown; use one of {known}{hint}"
            ) from None

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


def split_cost(parts: Sequence[str]) -> tuple[str, list[str]]:
    """Return the formula that stands first in a policy's parts (between its colons), and the rest.

    `FILE.py` and `FUNCTION` are one; its name is without the folder, as `own_name` has it.
    """
    if len(parts) > 1 and parts[0].endswith(".py") and "=" not in parts[1]:
        return own_name(parts[0], parts[1]), list(parts[2:])
    return parts[0], list(parts[1:])


def own_name(path: str, function: str) -> str:
    """Return what a file's function is called as a formula."""
    return f"{path.rpartition('/')[2]}:{function}"
