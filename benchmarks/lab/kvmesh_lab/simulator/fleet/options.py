"""What a simulated fleet is made of, and how its routers decide."""

from math import inf
from typing import Final, Literal

import msgspec

from kvmesh.core.admission.ledger import DEFAULT_QUANTUM
from kvmesh.core.admission.queue import QueueFairness, QueuePolicy
from kvmesh.core.cost.targets import Targets
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.touch import TouchOptions
from kvmesh.core.routing.choice.slo_judge import SloOptions
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.faults import FaultOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.simulator.fleet.faults import SlowDown

Feedback = Literal["full", "whole", "ends", "none", "dropped"]
"""What a router sees of answers: their tokens and their end; whole: they are not streamed, it sees
their end and their length; their end alone; nothing; dropped: it sees nothing, and drops each
booking at once.
"""

_SPLITS: Final = ("prefillers", "prefill_threshold", "transfer_ms", "transfer_ms_per_token")


class PeerOptions(msgspec.Struct, frozen=True):
    """How soon blocks come from another engine: after `latency_ms`, `block_ms` for each.

    Raises `ConfigError` for a negative time.
    """

    block_ms: float
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        """Check the options together."""
        if min(self.block_ms, self.latency_ms) < 0.0:
            raise ConfigError(
                f"blocks come from peers in {self.block_ms} ms each after {self.latency_ms} ms: "
                "no time is negative"
            )


class FleetOptions(msgspec.Struct, frozen=True):
    """Engines and router replicas, and how late one hears of the other. Times are seconds.

    Engine i runs at `speed_ratios[i % len]` times the profile's speed; where `kinds` has one for
    each of them, they are as these say in place of `engine`. KV events reach the routers
    `event_delay_s` after the step they belong to, bookings the other replicas after `sync_delay_s`,
    load reports come each `report_interval_s`. Without `kv_events` routers know only what they
    sent. Above a predicted backlog of `max_backlog_ms` (0: never) routers hold requests, ordered by
    `queue_policy`, shared among tenants by `queue_fairness` and `quantum_tokens`. `seed` spreads
    the requests over the replicas, and draws who meets a fault.

    Engine i has `faults[i]`, () is a healthy fleet; `slow_downs` change their speed on the way. A
    request that an engine failed before any of its answer came is sent to another, `retries` times
    at most; a client waits `client_timeout_s` for an answer that never comes. With `peer` engines
    take blocks from each other's caches.

    The first `prefillers` engines compute prompts for the others, which can do a whole request,
    too. Of prompts with `prefill_threshold` uncached tokens routers split `split_share`, None:
    those for which it costs less. Moving a prompt's KV cache takes `transfer_ms`, and
    `transfer_ms_per_token` for each token that the other engine lacks.

    Of answers routers see what `feedback` says; what is missing is inferred, each `look_s`. Load
    reports are `report_age_s` old when they come. `tells_lengths` False: no request says how long
    its answer will be; `tells_final`: a session's last turn says that it is. `turns`: how programs
    take turns, which are those of the trace; None: each request goes as it comes. `touches`: when
    engines are reminded of contexts, None: never; with `turns`.

    `joins`: these engines are members from so many seconds on; `leaves`: these get nothing new from
    then on. `warm`: how newcomers are given prefixes before they serve, None: they are not.
    `hand_over`: how others are given what only an engine keeps that leaves, in the `drain_s` that
    it takes, None: they are not.

    All requests ask for `targets`; what hardly meets them is refused, by `slo`.
    """

    engines: int = 8
    routers: int = 1
    engine: EngineOptions = EngineOptions()
    kinds: tuple[EngineOptions, ...] = ()
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
    slow_downs: tuple[SlowDown, ...] = ()
    retries: int = 2
    client_timeout_s: float = 60.0
    peer: PeerOptions | None = None
    prefillers: int = 0
    split_share: float | None = None
    prefill_threshold: int = 256
    transfer_ms: float = 2.0
    transfer_ms_per_token: float = 0.005
    feedback: Feedback = "full"
    look_s: float = 0.02
    report_age_s: float = 0.0
    tells_lengths: bool = True
    tells_final: bool = False
    turns: GovernorOptions | None = None
    targets: Targets | None = None
    slo: SloOptions = SloOptions()
    touches: TouchOptions | None = None
    joins: tuple[tuple[int, float], ...] = ()
    leaves: tuple[tuple[int, float], ...] = ()
    warm: WarmOptions | None = None
    hand_over: WarmOptions | None = None
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        """Check the options together. Raises `ConfigError`."""
        for name in (
            "engines",
            "routers",
            "report_interval_s",
            "client_timeout_s",
            "quantum_tokens",
            "look_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in (
            *("event_delay_s", "sync_delay_s", "report_age_s", "max_backlog_ms", "retries"),
            *_SPLITS,
        ):
            if not 0 <= getattr(self, name) < inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if self.prefillers >= self.engines:
            raise ConfigError(
                f"prefillers is {self.prefillers} of {self.engines} engines: leave one to decode"
            )
        if self.split_share is not None and not 0.0 <= self.split_share <= 1.0:
            raise ConfigError(f"split_share is {self.split_share}: it must be 0 to 1")
        if not self.speed_ratios:
            raise ConfigError("speed_ratios is empty: name at least one")
        self._check_engines()

    def _check_engines(self) -> None:
        if self.kinds and len(self.kinds) != self.engines:
            raise ConfigError(f"kinds has {len(self.kinds)} of {self.engines} engines: name each")
        if {one.block_size for one in self.kinds} - {self.engine.block_size}:
            raise ConfigError("kinds has engines of other block sizes: the fleet has one")
        for number, due_s in (*self.joins, *self.leaves):
            if not (0 <= number < self.engines and 0 <= due_s < inf):
                raise ConfigError(
                    f"engine {number} of {self.engines} joins or leaves at {due_s} s: never"
                )
