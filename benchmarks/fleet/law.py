"""How many requests a second processors serve, of what a request costs each kind of process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.measure import Comparison, Sample

PROCESSES: Final = range(1, 9)
US: Final = 1e6


class Costs(msgspec.Struct, frozen=True):
    """Processor time of one request, us: of a router `alone`, a `meta`-router, and in a bucket on
    NATS of who serves it (`replica`) and each other (`sibling`).
    """

    alone: float
    meta: float
    replica: float
    sibling: float

    @property
    def sigma(self) -> float:
        """Return a sibling's part over what a request takes at who serves it."""
        return self.sibling / self.replica if self.replica else 0.0


def speed_up(sigma: float, replicas: int) -> float:
    """Return how many times the work of one replica so many do: R / (1 + sigma (R - 1))."""
    return replicas / (1.0 + sigma * (replicas - 1))


def replicas_rate(costs: Costs, replicas: int) -> float:
    """Return the requests a second of the replicas of a bucket, whoever spreads requests."""
    if replicas == 1:
        return US / costs.alone
    return US / costs.replica * speed_up(costs.sigma, replicas)


def mesh_rate(costs: Costs, processes: int) -> float:
    """Return the requests a second of the best split into replicas and meta-routers."""
    if processes == 1:
        return US / costs.alone
    return max(
        min(US * metas / costs.meta, replicas_rate(costs, processes - metas))
        for metas in range(1, processes)
    )


def law(costs: Costs, replicas: int) -> float:
    """Return how many times the work of one replica on NATS so many do."""
    return speed_up(costs.sigma, replicas)


MODELS: Final[Mapping[str, Callable[[Costs, int], float]]] = {
    "replicas, meta-routers req/s": mesh_rate,
    "replicas, balancer req/s": replicas_rate,
    "times one replica": law,
}


def modelled(costs: Costs, of: str) -> Comparison:
    """Return the table of requests a second, a row for each number of processes."""
    rows: dict[str, Sequence[Sample]] = {
        f"{count} processors": [{name: rate(costs, count) for name, rate in MODELS.items()}]
        for count in PROCESSES
    }
    title = f"requests a second, modelled, {of}: sigma {costs.sigma:.3f}"
    return Comparison(title, next(iter(rows)), rows)


def costs_of(comparison: Comparison, name: str) -> Costs:
    """Return the medians of what was measured."""
    return Costs(
        **{
            field: comparison.median(name, f"{field} us") or 0.0
            for field in Costs.__struct_fields__
        }
    )
