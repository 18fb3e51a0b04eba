"""Weights by name, and the policies that are made of them."""

from collections.abc import Mapping

Weighting = Mapping[str, float]
"""Weights by name."""


def name_policy(cost: str, weights: Weighting) -> str:
    """Return the policy as --policy and --shadow-policy take it."""
    return ":".join(["kv", cost, *(f"{name}={value:g}" for name, value in weights.items())])


def alike(one: Weighting, other: Weighting) -> bool:
    """Return whether two are the same to a part in a hundred."""
    names = one.keys() | other.keys()
    return all(
        abs(one.get(name, 0.0) - other.get(name, 0.0))
        <= 0.01 * max(abs(one.get(name, 0.0)), abs(other.get(name, 0.0)))
        for name in names
    )
