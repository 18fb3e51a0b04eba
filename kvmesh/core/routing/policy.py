"""Routing policies by name, as flags, headers and traces write them."""

from typing import Final, cast, get_args

import msgspec

from kvmesh.bounds import MAX_FIGURE, real_number, shown
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, split_cost
from kvmesh.core.routing.decision import RouterMode, RouterOptions
from kvmesh.errors import ConfigError

_MODES: Final = tuple(mode for mode in get_args(RouterMode) if mode != "direct")
ORACLE: Final = "oracle"
"""The policy that sees into the engines, as no router can."""

_TUNABLE: Final = ("temperature", "predict_ttl_s", "approx_ttl_s")


def parse_policy(text: str, block_size: int, formulas: Formulas = PUBLISHED) -> RouterOptions:
    """Return the options `text` names: `MODE`, `kv:COST`, `kv:COST:name=number:…` or `oracle`; COST
    may be `FILE.py:FUNCTION` of a formula in `formulas`.

    E.g. `round-robin`, `kv`, `kv:predicted-time`, `kv:prefill-decode:overlap_score_weight=8`.
    Raises `ConfigError` naming what exists.
    """
    if text == ORACLE:
        return RouterOptions(mode="direct", block_size=block_size, formulas=formulas)
    mode, *rest = text.split(":")
    if mode not in _MODES:
        known = ", ".join((*_MODES, ORACLE))
        raise ConfigError(f"policy {text!r}: {mode!r} is none of {known}")
    if rest and mode != "kv":
        raise ConfigError(f"policy {text!r}: only kv takes a cost formula")
    options = RouterOptions(mode=cast("RouterMode", mode), block_size=block_size, formulas=formulas)
    place = f"policy {text!r}"
    if rest and "=" not in rest[0]:
        name, rest = split_cost(rest)
        cost = formulas.plain(name, f"{place}: kv_cost").cost
        options = msgspec.structs.replace(options, cost=cost.name)
    weights: dict[str, float] = {}
    for assignment in rest:
        name, number = read_assignment(assignment, place)
        if name in _TUNABLE:
            if number < 0.0:
                raise ConfigError(f"{place}: {assignment!r}: must be 0 or more")
            options = msgspec.structs.replace(options, **{name: number})
        else:
            weights[name] = number
    table = formulas.plain(options.cost).cost.weights
    unknown = [name for name in weights if name not in table]
    if unknown:
        raise ConfigError(
            f"{place}: {unknown[0]!r} is none of {', '.join(_TUNABLE)}, nor a weight of "
            f"{options.cost}, which has {table}"
        )
    table.make(weights, place)
    return msgspec.structs.replace(options, weights=weights)


def read_assignment(text: str, place: str) -> tuple[str, float]:
    """Return the name and the number of `name=number`. Raises `ConfigError` that names `place`."""
    name, _, value = text.partition("=")
    number = real_number(value.strip(), -MAX_FIGURE, MAX_FIGURE)
    if number is None:
        raise ConfigError(
            f"{place}: {shown(text)} is not name=number with a number of at most {MAX_FIGURE:g}"
        )
    return name, number
