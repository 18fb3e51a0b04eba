"""A policy to compare, as the headers that ask a router for it."""

from collections.abc import Mapping
from math import inf
from typing import Final

from kvmesh.core.cost.catalogue import PUBLISHED, split_cost
from kvmesh.errors import ConfigError

_HEADERS: Final[Mapping[str, bytes]] = {
    "temperature": b"x-kvmesh-temperature",
    "overlap_score_weight": b"x-kvmesh-overlap-score-weight",
}


def policy_headers(text: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of `MODE`, `kv:COST` or `kv:COST:name=number:…`; none for "".

    Modes are not checked: another router than ours may have its own. `kv:FILE.py:FUNCTION` asks
    for a formula that the router was started with; no file is read. Raises `ConfigError` for a
    formula we do not know, and for a number that no header carries.
    """
    if not text:
        return []
    mode, *rest = text.split(":")
    headers = [(b"x-kvmesh-router-mode", mode.encode())]
    if rest and mode != "kv":
        raise ConfigError(f"--compare {text!r}: only kv takes a cost formula")
    table = None
    if rest and "=" not in rest[0]:
        name, rest = split_cost(rest)
        if ".py:" not in name:  # else only the router knows it, if it was started with it
            table = PUBLISHED.plain(name, f"--compare {text!r}: kv_cost").cost.weights
        headers.append((b"x-kvmesh-cost", name.encode()))
    for assignment in rest:
        name, _, value = assignment.partition("=")
        if name not in _HEADERS:
            raise ConfigError(
                f"--compare {text!r}: a request may choose {' and '.join(_HEADERS)}, not {name!r}; "
                "start routers with it (--kv-cost), or use kvmesh simulate"
            )
        headers.append((_HEADERS[name], _number(value, text)))
        if table is not None and name != "temperature":
            table.make({name: float(value)}, f"--compare {text!r}")
    return headers


def _number(value: str, text: str) -> bytes:
    try:
        number = float(value)
    except ValueError as error:
        raise ConfigError(f"--compare {text!r}: {value!r} is no number") from error
    if not 0.0 <= number < inf:
        raise ConfigError(f"--compare {text!r}: {value} must be 0 or more, and finite")
    return value.encode()
