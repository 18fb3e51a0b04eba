"""Routing policies by name, as flags, headers and traces write them."""

from math import inf
from typing import Final, cast, get_args

import msgspec

from kvmesh.core.cost.formulas import cost_named
from kvmesh.core.cost.terms import Weights
from kvmesh.core.routing.decision import RouterMode, RouterOptions
from kvmesh.errors import ConfigError

_MODES: Final = tuple(mode for mode in get_args(RouterMode) if mode != "direct")
ORACLE: Final = "oracle"
"""The policy that sees into the engines, as no router can."""

_TUNABLE: Final = ("temperature", "overlap_score_weight", "predict_ttl_s", "approx_ttl_s")


def parse_policy(text: str, block_size: int) -> RouterOptions:
    """Return the options `text` names: `MODE`, `kv:COST`, `kv:COST:name=number:…` or `oracle`.

    E.g. `round-robin`, `kv`, `kv:predicted-time`, `kv:prefill-decode:overlap_score_weight=8`.
    Raises `ConfigError` naming what exists.
    """
    if text == ORACLE:
        return RouterOptions(mode="direct", block_size=block_size)
    mode, *rest = text.split(":")
    if mode not in _MODES:
        known = ", ".join((*_MODES, ORACLE))
        raise ConfigError(f"policy {text!r}: {mode!r} is none of {known}")
    if rest and mode != "kv":
        raise ConfigError(f"policy {text!r}: only kv takes a cost formula")
    options = RouterOptions(mode=cast("RouterMode", mode), block_size=block_size)
    if rest and "=" not in rest[0]:
        options = msgspec.structs.replace(options, cost=cost_named(rest.pop(0)).name)
    for assignment in rest:
        options = _assign(options, assignment, text)
    return options


def _assign(options: RouterOptions, assignment: str, policy: str) -> RouterOptions:
    name, _, value = assignment.partition("=")
    try:
        number = float(value)
        if not 0.0 <= number < inf:
            raise ConfigError(f"policy {policy!r}: {assignment!r}: must be 0 or more, and finite")
    except ValueError as error:
        raise ConfigError(f"policy {policy!r}: {assignment!r} is not name=number") from error
    if name in _TUNABLE:
        return msgspec.structs.replace(options, **{name: number})
    if name in Weights.__struct_fields__:
        weights = msgspec.structs.replace(options.weights, **{name: number})
        return msgspec.structs.replace(options, weights=weights)
    known = ", ".join(dict.fromkeys((*_TUNABLE, *Weights.__struct_fields__)))
    raise ConfigError(f"policy {policy!r}: {name!r} is none of {known}")
