"""What people and Prometheus are told of refused URLs."""

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvmesh.core.members.url_guard import UrlGuard


class UrlRefusals:
    """Shows what a guard refused."""

    def __init__(self, guard: UrlGuard) -> None:
        self._guard = guard

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each member refused of late."""
        refused = self._guard.refused(time.monotonic()).items()
        return tuple(
            f"{name} gets no requests: {why}; see --upstream-allow" for name, why in refused
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as Prometheus reads them."""
        yield CounterMetricFamily(
            "kvmesh_refused_urls",
            "URLs of heartbeats and discovery that --upstream-allow refused.",
            self._guard.refusals,
        )
        yield GaugeMetricFamily(
            "kvmesh_refused_members",
            "Workers, replicas and hosts refused in the last 10 s.",
            len(self._guard.refused(time.monotonic())),
        )
