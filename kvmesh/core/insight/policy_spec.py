"""A policy of mode kv as replicas tell each other: a formula's name and the weights set for it."""

from typing import Final

import msgspec

from kvmesh.core.cost.catalogue import Formulas, Pricing
from kvmesh.core.cost.weights import weights_of

MOST_NAME: Final = 256
"""Characters of a formula's or a replica's name."""


class PolicySpec(msgspec.Struct, frozen=True):
    """A cost `formula` by its name, and those of its `weights` that are not at their defaults."""

    formula: str
    weights: dict[str, float] = {}

    def __str__(self) -> str:
        """Return it as flags write it: `kv:FORMULA:name=number`."""
        parts = (f"{name}={value:g}" for name, value in sorted(self.weights.items()))
        return ":".join((f"kv:{self.formula}", *parts))

    def find(self, formulas: Formulas) -> Pricing:
        """Return the formula and weights of that name. Raises `ConfigError` naming what exists."""
        return formulas.pricing(self.formula, self.weights, "formula")


def spec_of(pricing: Pricing) -> PolicySpec:
    """Return how a policy is named: the weights that differ from the formula's defaults."""
    usual = weights_of(pricing.cost.weights.default)
    weights = weights_of(pricing.weights)
    return PolicySpec(
        pricing.cost.name, {name: value for name, value in weights.items() if value != usual[name]}
    )
