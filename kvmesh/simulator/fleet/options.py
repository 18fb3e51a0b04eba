"""What a simulated fleet is made of, and how its routers decide."""

import msgspec

from kvmesh.core.admission.ledger import DEFAULT_QUANTUM
from kvmesh.core.admission.queue import QueueFairness, QueuePolicy
from kvmesh.errors import ConfigError
from kvmesh.mocker.model.faults import FaultOptions
from kvmesh.mocker.model.options import EngineOptions


class FleetOptions(msgspec.Struct, frozen=True):
    """Engines and router replicas, and how late one hears of the other. Times are seconds.

    Engine i runs at `speed_ratios[i % len]` times the profile's speed. KV events reach the routers
    `event_delay_s` after the step they belong to, bookings the other replicas after `sync_delay_s`,
    load reports come each `report_interval_s`. Without `kv_events` routers know only what they
    sent. Above a predicted backlog of `max_backlog_ms` (0: never) routers hold requests, ordered by
    `queue_policy`, shared among tenants by `queue_fairness` and `quantum_tokens`. `seed` spreads
    the requests over the replicas, and draws who meets a fault.

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
    queue_fairness: QueueFairness = "tokens"
    quantum_tokens: int = DEFAULT_QUANTUM
    seed: int = 0
    faults: tuple[FaultOptions, ...] = ()
    retries: int = 2
    client_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Check the options together. Raises `ConfigError`."""
        for name in (
            "engines",
            "routers",
            "report_interval_s",
            "client_timeout_s",
            "quantum_tokens",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("event_delay_s", "sync_delay_s", "max_backlog_ms", "retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if not self.speed_ratios:
            raise ConfigError("speed_ratios is empty: name at least one")
