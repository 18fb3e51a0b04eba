"""One router replica as the dashboard and `kvmesh explain` see it."""

import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.app.process.build import in_words, own_build
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.views.decision_view import DecisionRow, Recorder
from kvmesh.app.views.figure import Sources
from kvmesh.app.views.overview import (
    Overview,
    PrefixRow,
    ReplicaRow,
    WorkerRow,
    compare_replicas,
    sum_buckets,
    with_numbers,
)
from kvmesh.app.views.policy_view import PolicyRow, TuningRow, policy_marks
from kvmesh.app.views.problems import ReplicaState
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.app.views.spare_time import SpareTime
from kvmesh.app.views.tenant_view import detail_for
from kvmesh.app.views.traffic_watch import TrafficWatch
from kvmesh.core.admission.access import Viewer
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.insight.decision_record import find_own
from kvmesh.core.insight.mark_log import Mark, merge_marks
from kvmesh.core.insight.record_search import RecordSearch
from kvmesh.core.insight.traffic import KEPT_S, TrafficSecond

MAX_PREFIXES = 24
"""Prefixes shown of one replica."""


class ViewedMesh(Protocol):
    """What the view asks of the mesh."""

    draining: bool

    def why_not(self) -> str:
        """Return why no request should come; "" when they may."""
        ...

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of this replica and its peers, own first."""
        ...

    def digests(self) -> tuple[int, int]:
        """Return how many digests of peers were compared, and how many differed."""
        ...


MOST_RECORDS = 1 << 20
"""More than any decision log keeps."""


class RouterView:
    """Answers for one replica; reads what is there, changes nothing."""

    role: Literal["router", "picker"] = "router"
    tick_s = 0.25

    def __init__(
        self,
        context: RoutingContext,
        mesh: ViewedMesh,
        warnings: Callable[[], list[str]],
        sources: Sources,
        policy: Callable[[], PolicyRow],
        traffic: TrafficWatch,
    ) -> None:
        self._context = context
        self._mesh = mesh
        self._warnings = warnings
        self._sources = sources
        self._policy = policy
        self.tuning: Callable[[], list[TuningRow]] = list
        self.programs: Callable[[], list[ProgramRow]] = list
        self._traffic = traffic
        self._log = context.decisions
        self._spare = SpareTime(self._log.settle)
        # One offset for the whole life: a second must not move when the system's clock is slewed.
        self._offset_s = time.time() - context.clock()
        self._recorder = Recorder(context.router_id, context.bucket, self._offset_s)
        self._started = int(time.time())
        self._build = own_build()

    async def refresh(self, *, watched: bool) -> None:
        """Have the decision log look into what it put off, as far as there is time for it."""
        del watched
        self._log.replicas = max(1, len(self._mesh.replicas()))
        await self._spare.catch_up()

    def overview(self, since: int, decisions: int, after: int = 0) -> Overview:
        """Return the present, traffic from Unix second `since` on, and `decisions` requests.

        These are the newest, or those that changed last behind the cursor `after`. O(workers).
        """
        context, mesh = self._context, self._mesh
        scheduler = context.scheduler
        numbers, now = self._sources.numbers("worker"), context.clock()
        hung = {one.worker for one in self._traffic.workers(now) if one.hung}
        workers = [
            self._worker(beat, numbers.get((beat.worker,), {}), hung=beat.worker in hung)
            for beat in context.router.workers()
        ]
        replicas = self._replicas()
        reason = mesh.why_not()
        log, policy = self._log, self._policy()
        shown = (
            log.changed_after(after, decisions) if after else log.records.latest(decisions)[::-1]
        )
        return Overview(
            role=self.role,
            name=context.router_id,
            version=self._build.version,
            started=self._started,
            now=time.time(),
            ready=not reason,
            reason=reason,
            policy=_policy(scheduler.options.mode, scheduler.policy.cost.name),
            block_size=scheduler.options.block_size,
            buckets=sum_buckets(replicas, workers),
            replicas=replicas,
            workers=workers,
            counters=context.counters.as_dict(),
            seconds=self._seconds(since),
            decisions=[self._recorder.row(one) for one in shown],
            prefixes=self._prefixes(),
            shadows=log.shadows.reports(),
            policies=[policy] if policy.history or policy.refused else [],
            tuning=self.tuning(),
            cursor=log.version,
            warnings=self._warnings(),
            formats=in_words(self._build.formats),
            programs=self.programs(),
            problems=self._traffic.problems(now),
            traffic=self._traffic.traffic(now),
            models=self._traffic.models(now),
            tenants=self._traffic.tenants(now),
            marks=self._marks(policy, now),
        )

    def _marks(self, policy: PolicyRow, now: float) -> list[Mark]:
        seen, offset = self._traffic.marks.rows(now - KEPT_S), self._offset_s
        own = (msgspec.structs.replace(one, at=round(one.at + offset, 1)) for one in seen)
        return merge_marks([own, policy_marks(policy, now + offset - KEPT_S)])

    def replica_states(self) -> list[ReplicaState]:
        """Return how each replica of the bucket stands, own first."""
        return [
            ReplicaState(
                one.replica,
                one.bucket,
                one.ready,
                one.reason,
                one.draining,
                one.agreement == "disagrees",
            )
            for one in self._replicas()
        ]

    def changes(self, after: int, limit: int) -> tuple[list[DecisionRow], int]:
        """Return the newest `limit` rows that changed behind cursor `after`, and the new cursor."""
        rows = [self._recorder.row(one) for one in self._log.changed_after(after, limit)]
        return rows, self._log.version

    async def latest(self, limit: int, search: RecordSearch) -> Callable[[], list[DecisionRow]]:
        """Return how to find the newest requests that are looked for, newest first. O(records)
        where something is looked for.
        """
        await self.refresh(watched=True)
        most = limit if search == RecordSearch() else MOST_RECORDS

        def find() -> list[DecisionRow]:
            found = search.among(self._log.records.latest(most), limit)
            return [self._recorder.row(one) for one in found]

        return find

    async def find(self, request_id: str, viewer: Viewer | None = None) -> bytes | None:
        """Return all about a request as JSON that `viewer` may see; None when it is not known (any
        more), or another tenant's.
        """
        await self.refresh(watched=True)
        name = request_id.encode("latin-1", "replace")
        record = self._log.records.find(name)
        if record is not None and viewer is not None and record.tenant != viewer.tenant:
            record = find_own(self._log.records.latest(MOST_RECORDS), name, viewer.tenant)
        return None if record is None else detail_for(self._recorder.detail(record), viewer)

    def _seconds(self, since: int) -> list[TrafficSecond]:
        offset = round(self._offset_s)
        return [
            msgspec.structs.replace(one, second=one.second + offset)
            for one in self._log.seconds(since - offset)
        ]

    def _worker(
        self, beat: WorkerHeartbeat, numbers: Mapping[str, float], *, hung: bool
    ) -> WorkerRow:
        context = self._context
        scheduler, worker = context.scheduler, beat.worker
        membership, now = scheduler.workers.membership, context.clock()
        why_not = membership.why_not(worker, now) or ""
        failures, attempts = membership.health.recent(worker)
        row = WorkerRow(
            worker=worker,
            bucket=context.bucket,
            url=beat.url,
            models=beat.models,
            trust=context.trust(worker).value,
            usable=not why_not,
            why_not=why_not,
            stage=membership.health.standing(worker, now),
            failures=failures,
            attempts=attempts,
            version=beat.version,
            journal_format=beat.journal_format,
            hung=hung,
        )
        return with_numbers(row, numbers)

    def _prefixes(self) -> list[PrefixRow]:
        """Return the hottest prefixes with who holds them: one look into the index for each."""
        context = self._context
        now, size, texts = context.clock(), context.scheduler.options.block_size, context.texts
        rows: list[PrefixRow] = []
        for one in self._log.prefixes.hottest(MAX_PREFIXES, now):
            last_block = BlockHashes.of([one.key], size)
            holders, _ = context.scheduler.overlaps.find_groups(last_block, now)
            rows.append(
                PrefixRow(
                    key=f"{one.key:016x}",
                    parent=f"{one.parent:016x}" if one.parent else "",
                    bucket=context.bucket,
                    depth=one.depth,
                    requests=round(one.requests, 2),
                    share=round(one.share, 4),
                    cached_share=round(one.cached_share, 4),
                    workers=tuple(sorted(holders)),
                    text=texts.find(one.key, one.depth, one.depth * size) if texts else "",
                )
            )
        return rows

    def _replicas(self) -> list[ReplicaRow]:
        context, mesh = self._context, self._mesh
        reason, numbers = mesh.why_not(), self._sources.numbers().get((), {})
        rows: list[ReplicaRow] = []
        for beat in mesh.replicas():
            row = _replica(beat)
            if beat.router == context.router_id:
                compared, differed = mesh.digests()
                row = msgspec.structs.replace(
                    row, reason=reason, digests_compared=compared, mismatches=differed
                )
                row = with_numbers(row, numbers)
            rows.append(row)
        if not rows:
            alone = ReplicaRow(
                replica=context.router_id,
                bucket=context.bucket,
                url="",
                ready=not reason,
                reason=reason,
                draining=mesh.draining,
                kv_events=False,
                version=self._build.version,
                formats=in_words(self._build.formats),
                role=self.role,
            )
            rows.append(with_numbers(alone, numbers))
        return compare_replicas(rows)


def _replica(beat: RouterHeartbeat) -> ReplicaRow:
    return ReplicaRow(
        replica=beat.router,
        bucket=beat.bucket,
        url=beat.url,
        ready=beat.ready,
        reason="" if beat.ready else "not ready",
        draining=beat.draining,
        kv_events=True,
        created=beat.created,
        applied_sequence=beat.applied_sequence,
        digest=f"{beat.digest:016x}",
        scope=f"{beat.scope:016x}",
        active_requests=beat.active_requests,
        version=beat.version,
        formats=in_words(beat.formats),
        role="picker" if beat.picker else "router",
    )


def _policy(mode: str, cost: str) -> str:
    return f"{mode}, {cost}" if mode == "kv" else mode
