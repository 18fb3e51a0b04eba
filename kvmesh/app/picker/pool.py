"""One InferencePool as it is now: its endpoints, and the priorities of its objectives."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from kvmesh.app.members.warning_lines import by_reason
from kvmesh.app.picker.kube_api import KubeApi, Query, connect
from kvmesh.app.picker.kube_mirror import Mirror
from kvmesh.app.picker.kube_objects import (
    LABEL,
    OBJECT,
    OBJECTIVES,
    PODS,
    POOLS,
    InferenceObjective,
    InferencePool,
    Pod,
    read,
)
from kvmesh.app.picker.pool_endpoints import PoolEndpoints, find_endpoints
from kvmesh.app.picker.pool_view import PoolName, PoolStatistics
from kvmesh.bounds import MAX_PRIORITY, clamped, shown
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.settings.features import PoolSettings
from kvmesh.tasks import end_tasks, supervise

RELIST_S: Final = 300.0
"""Everything is listed again after so long, whatever the watches reported: one that misses a change
without ending is not known of, and a list of a pool takes some KB."""

MOST_NAMED: Final = 3
"""Objects that cannot be read named in a warning; the others are counted."""


NO_SIDECAR: Final = "ready, but no worker's heartbeat names this pod"
SIDECAR: Final = "give it kvmesh worker as a sidecar (deploy/k8s/components)"

AnyMirror = Mirror[InferencePool] | Mirror[Pod] | Mirror[InferenceObjective]


class PoolWatch:
    """Watches a pool, its pods and its objectives while `run` runs.

    `found` are its endpoints: none before `synced`, and none of a pool that is not there. What is
    known stays while the API server cannot be asked. `listeners` are called after each change of
    the endpoints. `unserved`, if set, returns the pods that no request can be sent to.
    """

    def __init__(self, name: PoolName, api: KubeApi, relist_s: float = RELIST_S) -> None:
        self.name = name
        self.found = PoolEndpoints()
        self.synced = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self.unserved: Callable[[], tuple[str, ...]] | None = None
        self._api = api
        self._pools = Mirror(
            api,
            Query(POOLS, name.namespace, name=name.name),
            partial(read, InferencePool),
            self._pool_changed,
            relist_s,
        )
        nobody = Query(PODS, name.namespace)
        self._pods = Mirror(api, nobody, partial(read, Pod), self._changed, relist_s)
        self._reselect = asyncio.Event()
        self._objectives = tuple(
            Mirror(
                api,
                Query(collection, name.namespace),
                partial(read, InferenceObjective),
                self._objectives_changed,
                relist_s,
            )
            for collection in OBJECTIVES
        )
        self._priorities: dict[str, int] = {}
        self._log = get_logger()

    async def run(self) -> None:
        """Watch until cancelled."""
        works = (self._pools.run, self._follow_pods, *(one.run for one in self._objectives))
        running = [supervise("inference pool", work) for work in works]
        try:
            await asyncio.gather(*running)
        finally:
            await end_tasks(*running)

    @property
    def pool(self) -> InferencePool | None:
        """Return the pool; None while it is not there, or is being deleted."""
        pool = self._pools.objects.get(self.name.name)
        return None if pool is None or pool.metadata.deletion_timestamp is not None else pool

    def priority_of(self, objective: str) -> int | None:
        """Return the priority of requests that name this objective; None for one not known."""
        return self._priorities.get(objective)

    def why_not(self) -> str:
        """Return why the pool has no endpoint, in words; "" when it has."""
        pool = self.pool
        if self.found.endpoints:
            return ""
        if not self._pools.synced:
            return self._pools.trouble or "it was not read yet"
        if pool is None:
            return self._pools.wrong.get(self.name.name, "there is no such pool")
        if not self._pods.synced:
            return self._pods.trouble or "its pods were not read yet"
        labels = ",".join(f"{key}={value}" for key, value in pool.labels.items())
        if self.found.unready:
            return f"none of its {self.found.unready} pods ({labels}) is ready"
        return f"no pod of its namespace has the labels {labels} and serves its ports"

    def warnings(self) -> tuple[str, ...]:
        """Return what keeps the pool from being known in full, one line each."""
        why, pool = self.why_not(), self.pool
        said = [f"no endpoint: {why}"] if why else []
        deaf = [one for one in self._mirrors if one.trouble and not one.absent]
        said += [f"what is known stays: {one.trouble}" for one in deaf if one.trouble != why]
        unused = {line for one in self._mirrors for line in one.wrong.values()}
        wrong = sorted({*unused, *self.found.wrong} - {why})
        said += wrong[:MOST_NAMED]
        if len(wrong) > MOST_NAMED:
            said.append(f"{len(wrong) - MOST_NAMED} more objects that cannot be used")
        if pool is not None and (protocol := pool.spec.app_protocol) != "http":
            said.append(
                f"its appProtocol is {protocol}: engines are asked over HTTP/1.1 all the same"
            )
        if self.unserved is not None:
            said += by_reason(((pod, SIDECAR) for pod in self.unserved()), NO_SIDECAR)
        return tuple(f"InferencePool {self.name}: {line}" for line in said)

    def describe(self) -> dict[str, object]:
        """Return the pool as /v1/status shows it."""
        pool = self.pool
        picker = pool.spec.endpoint_picker_ref if pool is not None else None
        return {
            "pool": str(self.name),
            "api_server": self._api.server,
            "selector": pool.labels if pool is not None else None,
            "target_ports": pool.ports if pool is not None else (),
            "failure_mode": picker.failure_mode if picker is not None else None,
            "endpoints": [one.address for one in self.found.endpoints],
            "unready_pods": self.found.unready,
            "pods_without_worker": self.unserved() if self.unserved is not None else (),
            "objectives": self._priorities,
            "warnings": self.warnings(),
        }

    def statistics(self) -> PoolStatistics:
        """Return counts for /metrics."""
        lists: dict[str, int] = {}
        events: dict[str, int] = {}
        failures: dict[tuple[str, str], int] = {}
        for mirror in self._mirrors:
            kind, counts = mirror.query.collection.plural, mirror.statistics()
            lists[kind] = lists.get(kind, 0) + counts.lists
            events[kind] = events.get(kind, 0) + counts.events
            counted = (("refused", counts.refused), ("failed", counts.failed))
            for why, count in (*counted, ("unreadable", counts.unreadable)):
                failures[kind, why] = failures.get((kind, why), 0) + count
        return PoolStatistics(
            endpoints=len(self.found.endpoints),
            unready_pods=self.found.unready,
            unserved_pods=len(self.unserved()) if self.unserved is not None else None,
            synced=self.synced.is_set(),
            objectives=len(self._priorities),
            lists=lists,
            events=events,
            failures=failures,
        )

    @property
    def _mirrors(self) -> tuple[AnyMirror, ...]:
        return (self._pools, self._pods, *self._objectives)

    async def _follow_pods(self) -> None:
        """Follow the pods that the pool selects; others as soon as it selects others."""
        while True:
            self._reselect.clear()
            pods = self._pods
            following = supervise("inference pool", pods.run) if pods.query.labels else None
            try:
                await self._reselect.wait()
            finally:
                if following is not None:
                    await end_tasks(following)

    def _pool_changed(self) -> None:
        labels = self.pool.labels if self.pool is not None else {}
        if labels != self._pods.query.labels:
            self._pods.turn_to(Query(PODS, self.name.namespace, labels=labels))
            self._reselect.set()
        self._changed()

    def _changed(self) -> None:
        """Compute the endpoints again, and report when they changed."""
        before, pool = self.found, self.pool
        if pool is None:
            self.found = PoolEndpoints()
        else:
            self.found = find_endpoints(pool, self._pods.objects.values())
        if self._pools.synced and (pool is None or self._pods.synced):
            self.synced.set()
        if before.endpoints != self.found.endpoints:
            was, now = ({one.address for one in of.endpoints} for of in (before, self.found))
            joined, left = sorted(now - was), sorted(was - now)
            self._log.info("pool changed", endpoints=len(now), joined=joined, left=left)
            for tell in self.listeners:
                tell()

    def _objectives_changed(self) -> None:
        self._priorities = {
            name: clamped(one.spec.priority or 0, -MAX_PRIORITY, MAX_PRIORITY)
            for mirror in reversed(self._objectives)
            for name, one in mirror.objects.items()
            if one.is_of(self.name.name) and one.metadata.deletion_timestamp is None
        }


def watch_pool(settings: PoolSettings) -> PoolWatch:
    """Return the watch of --inference-pool, which runs nothing yet. Raises `ConfigError`."""
    return PoolWatch(parse_pool(settings.inference_pool), connect())


def parse_pool(text: str) -> PoolName:
    """Return the pool that `--inference-pool` names. Raises `ConfigError`."""
    namespace, slash, name = text.partition("/")
    if not (slash and LABEL.fullmatch(namespace) and OBJECT.fullmatch(name)):
        raise ConfigError(f"--inference-pool {shown(text)}: write NAMESPACE/NAME")
    return PoolName(namespace, name)
