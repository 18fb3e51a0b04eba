"""What a simulated fleet is made of, and how its routers decide."""

from math import inf
from typing import Final, cast, get_args

import msgspec

from kvmesh.core.admission import QueuePolicy
from kvmesh.core.cost import Weights, cost_named
from kvmesh.core.decision import RouterMode, RouterOptions
from kvmesh.core.engine_faults import FaultOptions
from kvmesh.core.engine_options import EngineOptions
from kvmesh.errors import ConfigError

_MODES: Final = tuple(mode for mode in get_args(RouterMode) if mode != "direct")
ORACLE: Final = "oracle"
"""The policy that sees into the engines, as no router can."""

_TUNABLE: Final = ("temperature", "overlap_score_weight", "predict_ttl_s", "approx_ttl_s")


class FleetOptions(msgspec.Struct, frozen=True):
    """Engines and router replicas, and how late one hears of the other. Times are seconds.

    Engine i runs at `speed_ratios[i % len]` times the profile's speed. KV events reach the routers
    `event_delay_s` after the step they belong to, bookings the other replicas after `sync_delay_s`,
    load reports come each `report_interval_s`. Without `kv_events` routers know only what they
    sent. Above a predicted backlog of `max_backlog_ms` (0: never) routers hold requests, ordered by
    `queue_policy`. `seed` spreads the requests over the replicas, and draws who meets a fault.

    Engine i has `faults[i]`, () is a healthy fleet. A request that an engine failed before any of
    its answer came is sent to another, `retries` times at most; a client waits `client_timeout_s`
    for an answer that never comes.
    """

    engines: int = 8
    routers: int = 1
    engine: EngineOptions = EngineOptions()
    speed_ratios: tuple[float, ...] = (1.0,)
    event_delay_s: float = 0.005
    sync_delay_s: float = 0.005
    report_interval_s: float = 1.0
    kv_events: bool = True
    max_backlog_ms: float = 0.0
    queue_policy: QueuePolicy = "fcfs"
    seed: int = 0
    faults: tuple[FaultOptions, ...] = ()
    retries: int = 2
    client_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the options together. Raises `ConfigError`."""
        for name in ("engines", "routers", "report_interval_s", "client_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("event_delay_s", "sync_delay_s", "max_backlog_ms", "retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if not self.speed_ratios:
            raise ConfigError("speed_ratios is empty: name at least one")


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
