"""A policy of mode kv as replicas tell each other: a formula's name and the weights set for it."""

from math import isfinite
from typing import Final

import msgspec

from kvmesh.core.cost.formulas import Cost, cost_named
from kvmesh.core.cost.terms import Weights
from kvmesh.errors import ConfigError

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


class Policy(msgspec.Struct, frozen=True):
    """A policy that can decide."""

    cost: Cost
    weights: Weights


def policy_of(spec: PolicySpec) -> Policy:
    """Return the policy that `spec` names. Raises `ConfigError` that names what exists."""
    cost = cost_named(spec.formula)
    known = Weights.__struct_fields__
    for name, value in spec.weights.items():
        if name not in known:
            raise ConfigError(f"weight {name!r} is none of {', '.join(known)}")
        if not (isfinite(value) and value >= 0.0):
            raise ConfigError(f"weight {name} is {value:g}: it must be 0 or more, and finite")
    return Policy(cost, Weights(**spec.weights))  # type: ignore[arg-type]  # names checked above


def spec_of(policy: Policy) -> PolicySpec:
    """Return how `policy` is named: the weights that differ from the defaults."""
    told = msgspec.structs.asdict(policy.weights)
    usual = msgspec.structs.asdict(Weights())
    return PolicySpec(
        policy.cost.name, {name: value for name, value in told.items() if value != usual[name]}
    )
