"""Marks engine pods in Kubernetes with what losing each would cost, so that a ReplicaSet that is
scaled in deletes the cheapest.

Nothing waits for it: while the API server cannot be asked, requests are routed as ever, and pods
keep the marks that they have.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from kvmesh.app.picker.kube_api import Asker, KubeApi, Query, connect
from kvmesh.app.picker.kube_objects import (
    DELETION_COST,
    LABEL,
    LABEL_VALUE,
    OBJECT,
    PODS,
    Pod,
    read,
)
from kvmesh.app.router.admin import Costs, Replicas, RouterAdmin, ShownMarks
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.scaling_figures import MARKS, MarkFigures
from kvmesh.bounds import listed, shown, whole_number
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.pod_costs import (
    MOST_COST,
    MarkedPod,
    PodCosts,
    PodWorker,
    address_in,
    canonical,
    find_changes,
    find_costs,
    misleads,
)
from kvmesh.core.members.membership import DRAINING
from kvmesh.errors import ApiServerError, CodecError, ConfigError, KvMeshError
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import Work, to_next

LOOK_S: Final = 2.0
EVERY_S: Final = 60.0
"""Pods are listed, and marked wherever costs are others, so often; in between they are marked as
soon as a scale-in would take a wrong one.
"""

COMPARE_S: Final = 10.0
"""So often marks are compared in between: with 4,096 workers that takes some 35 ms."""

GAP_S: Final = 2.0
GAP_MAX_S: Final = 300.0
"""Between two looks at least; twice as long after each that failed."""

MOST_CHANGES: Final = 32
"""Pods marked at one look."""

MOST_S: Final = 30.0
"""A look that takes longer is given up: costs are others by then."""

AT_ONCE: Final = 256
"""Pods read between two turns of the event loop."""

FORBIDDEN: Final = 403
GONE: Final = 404
SERVER_ERROR: Final = 500
OF_ONE: Final = frozenset({400, GONE, 409, 413, 422})
"""Answers that are about one pod: the others can be marked all the same. So is `FORBIDDEN`, which a
webhook says, too, once some pod could be marked.
"""

MARKER: Final = Asker(
    "--mark-pods",
    "let the router's service account list and patch {} of its namespace (the Role of "
    "deploy/k8s/components/mark-pods, the chart's markPods)",
)


class PodMarks:
    """Marks the pods of a bucket while `run` runs, where this replica leads. `costs` returns what
    losing each worker would cost, s.
    """

    def __init__(
        self,
        api: KubeApi,
        context: RoutingContext,
        replicas: Replicas,
        costs: Costs,
    ) -> None:
        self._api = api
        self._context = context
        self._replicas = replicas
        self._costs = costs
        labels = {"kvmesh/engine": "true", "kvmesh/bucket": context.bucket}
        self._query = Query(PODS, api.namespace, labels=labels)
        self._pods: dict[str, MarkedPod] = {}
        self._refused: set[str] = set()
        self._why_refused = ""
        self._found = PodCosts({}, ())
        self._more = False
        self._trouble = ""
        self._drained: frozenset[str] = frozenset()
        self._regular_at = self._soon_at = self._compare_at = 0.0
        self._gap_s = GAP_S
        self._requests: Counter[tuple[str, str]] = Counter()
        self._rng = random.Random()  # noqa: S311  spreads load, no secret

    async def run(self) -> None:
        """Mark pods until cancelled."""
        try:
            while True:
                await asyncio.sleep(to_next(LOOK_S))
                if not self.leads():
                    self._forget()
                elif self.due():
                    await self.look()
        finally:
            await self._api.close()

    def leads(self) -> bool:
        """Return whether this replica marks the bucket's pods."""
        return self._context.leads(self._replicas())

    def due(self) -> bool:
        """Return whether the pods are to be looked at now: to list them, or where a scale-in would
        take a wrong one. O(workers); O(pods + workers log workers) where some drain that did not,
        and every `COMPARE_S`.
        """
        now = self._context.clock()
        if now >= self._regular_at:
            return True
        if now < self._soon_at:
            return False
        if self._more:
            return True
        if self._draining() == self._drained and now < self._compare_at:
            return False
        self._find_costs()
        return misleads(self._markable(), self._found.costs)

    async def look(self) -> None:
        """Mark the pods whose cost is another; list them before, where that is due."""
        began, before = self._context.clock(), self._trouble
        try:
            async with asyncio.timeout(MOST_S):
                await self._mark(lists=began >= self._regular_at)
        except KvMeshError as error:
            self._put_off(str(error))
        except TimeoutError:
            self._put_off(f"{self._api.server}: pods not listed and marked in {MOST_S:.0f} s")
        else:
            self._trouble, self._gap_s = "", GAP_S
            if began >= self._regular_at:
                self._regular_at = began + EVERY_S
            self._soon_at = self._context.clock() + GAP_S
            if before:
                self._context.log.info("pods marked again")

    def figures(self) -> MarkFigures:
        """Return the counts."""
        return MarkFigures(len(self._found.costs), dict(self._requests))

    def describe(self) -> dict[str, object]:
        """Return what /v1/status shows."""
        return {
            "api_server": self._api.server,
            "namespace": self._query.namespace,
            "selector": self._query.labels,
            "leads": self.leads(),
            "pods": len(self._pods),
            "marked": len(self._found.costs),
            "warnings": self.warnings(),
        }

    def warnings(self) -> tuple[str, ...]:
        """Return what keeps pods from being marked, one line each."""
        lines: list[str] = []
        if self._trouble:
            lines.append(
                "--mark-pods: a scale-in may take an engine that is dear to lose: pods are not "
                f"marked: {self._trouble}"
            )
        elif self._regular_at and not self._found.costs and self._context.router.workers():
            said = ",".join(f"{name}={value}" for name, value in self._query.labels.items())
            lines.append(
                f"--mark-pods: no pod of namespace {self._query.namespace} with the labels {said} "
                "has the IP address of a worker's URL: label the engines' pods so"
            )
        for names, why in (
            (self._found.unclear, "several pods share its address, and none bears its name"),
            (self._refused, self._why_refused),
        ):
            if names:
                lines.append(f"{listed(names)}: pod not marked with its drain cost: {why}")
        return tuple(lines)

    def _put_off(self, trouble: str) -> None:
        """Look again later, the later the longer it fails; say why, once."""
        if trouble != self._trouble:
            self._context.log.warning("pods not marked", error=trouble)
        self._trouble = trouble
        self._gap_s = min(2 * self._gap_s, GAP_MAX_S)
        wait_s = self._gap_s * self._rng.uniform(0.5, 1.0)
        self._soon_at = self._regular_at = self._context.clock() + wait_s

    async def _mark(self, *, lists: bool) -> None:
        if lists:
            with _counted(self._requests, "list"):
                listing = await self._api.list(self._query)
            self._pods = await _read(listing.items)
            # While all fails, those that refused are left to the last.
            self._refused &= self._pods.keys() if self._trouble else frozenset()
            self._find_costs()
        changes = find_changes(self._markable(), self._found.costs, MOST_CHANGES + 1)
        self._more = len(changes) > MOST_CHANGES
        for name, cost in changes[:MOST_CHANGES]:
            if not self.leads():
                return
            await self._change(name, cost)

    async def _change(self, name: str, cost: int) -> None:
        query = msgspec.structs.replace(self._query, name=name)
        try:
            with _counted(self._requests, "patch"):
                await self._api.annotate(query, {DELETION_COST: str(cost)})
        except ApiServerError as error:
            if error.status == GONE:
                del self._pods[name]
                return
            if error.status < SERVER_ERROR:
                # Not tried first again: whoever refuses one pod may let the others be marked.
                self._refused.add(name)
                self._why_refused = str(error)
            marked = self._requests["patch", "done"] > 0
            if error.status not in OF_ONE and not (marked and error.status == FORBIDDEN):
                raise
        else:
            self._pods[name] = msgspec.structs.replace(self._pods[name], cost=cost)

    def _markable(self) -> list[MarkedPod]:
        return [one for name, one in self._pods.items() if name not in self._refused]

    def _draining(self) -> frozenset[str]:
        now, why_not = self._context.clock(), self._context.workers.membership.why_not
        beats = self._context.router.heartbeats
        return frozenset(one for one in beats if why_not(one, now) == DRAINING)

    def _find_costs(self) -> None:
        context, drained = self._context, self._draining()
        costs = self._costs()
        workers = [
            PodWorker(
                beat.worker,
                address_in(beat.url),
                costs[WorkerId(beat.worker)],
                drains=beat.worker in drained,
            )
            for beat in context.router.workers()
        ]
        self._drained = drained
        self._found = find_costs(self._pods.values(), workers)
        self._compare_at = context.clock() + COMPARE_S

    def _forget(self) -> None:
        """Know nothing of the pods: a sibling leads, and this replica looks at once if it does."""
        self._pods, self._refused, self._found = {}, set(), PodCosts({}, ())
        self._more, self._trouble, self._gap_s = False, "", GAP_S
        self._regular_at = self._soon_at = 0.0


def marks_of(settings: RouterSettings) -> ShownMarks:
    """Return what makes and shows the marks of --mark-pods, of which nothing runs yet. Raises
    `ConfigError`.
    """
    if not LABEL_VALUE.fullmatch(settings.bucket):
        raise ConfigError(
            f"--mark-pods: no pod can have the label kvmesh/bucket={settings.bucket}: give "
            "--bucket a name of at most 63 characters that begins and ends with a letter or digit"
        )
    api = connect(asker=MARKER)
    if not LABEL.fullmatch(api.namespace):
        raise ConfigError(
            f"--mark-pods: {shown(api.namespace)} is no namespace: see the one of the pod's "
            "service account, or of the kubeconfig's context"
        )

    def show(
        context: RoutingContext,
        replicas: Replicas,
        costs: Costs,
        at: RouterAdmin,
    ) -> Work:
        marks = PodMarks(api, context, replicas, costs)
        at.show(MARKS.of(marks.figures), marks.warnings)
        at.parts["pod_marks"] = marks.describe
        return marks.run

    return show


async def _read(items: Iterable[msgspec.Raw]) -> dict[str, MarkedPod]:
    """Return the pods that run, by name; those that no API server can have meant are left out."""
    pods: dict[str, MarkedPod] = {}
    for number, data in enumerate(items):
        if not number % AT_ONCE:
            await asyncio.sleep(0)
        try:
            pod = read(Pod, data)
        except CodecError:
            continue
        name = pod.metadata.name
        if pod.runs and OBJECT.fullmatch(name):
            said = (pod.metadata.annotations or {}).get(DELETION_COST, "")
            addresses = dict.fromkeys(filter(None, map(canonical, pod.addresses)))
            cost = whole_number(said, -MOST_COST, MOST_COST)
            pods[name] = MarkedPod(name, tuple(addresses), cost)
    return pods


@contextmanager
def _counted(counts: Counter[tuple[str, str]], request: str) -> Iterator[None]:
    """Count what comes of a request within the block."""
    try:
        yield
    except ApiServerError as error:
        counts[request, "gone" if error.status == GONE else "refused"] += 1
        raise
    except (KvMeshError, asyncio.CancelledError):
        counts[request, "failed"] += 1
        raise
    else:
        counts[request, "done"] += 1
