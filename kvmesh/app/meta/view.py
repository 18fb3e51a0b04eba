"""All buckets and replicas as the meta-router's dashboard sees them, asked of the replicas."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.meta.pages import MetaPages
from kvmesh.app.process.build import in_words, own_build
from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.overview import (
    Overview,
    ReplicaRow,
    compare_replicas,
    merge_prefixes,
    merge_warnings,
    merge_workers,
    sum_buckets,
)
from kvmesh.app.views.policy_view import merge_policies
from kvmesh.app.views.problems import ReplicaState, replica_problems, warning_problems
from kvmesh.app.views.program_rows import merge_programs
from kvmesh.app.views.tenant_view import TenantDetail, detail_for
from kvmesh.app.views.traffic_rows import merge_models, merge_tenants, merge_traffic
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.access import ROLES_HEADER, Viewer
from kvmesh.core.buckets.placing import RouterReplica
from kvmesh.core.insight.mark_log import merge_marks
from kvmesh.core.insight.problem_log import ProblemLog, merge_problems
from kvmesh.core.insight.record_search import RecordSearch
from kvmesh.core.insight.traffic import KEPT_S, TrafficSecond, merge_seconds
from kvmesh.core.routing.shadow_policy import add_reports
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

FRESH_S: Final = 0.9
"""Replicas are asked again only after this long, however many look."""

AT_ONCE: Final = 16
"""Replicas asked at the same time."""

TENANT_HEADER: Final = "x-kvmesh-tenant"
"""What meta-routers call the header that names a request's tenant."""

KEPT_ROWS: Final = 1000
CHANGES: Final = 200
TIMEOUT_S: Final = 2.0

AnswerT = TypeVar("AnswerT")


class _Rows(msgspec.Struct, frozen=True):
    decisions: list[DecisionRow]


class _Known(msgspec.Struct, eq=False):
    """One replica's last answer, and its seconds so far; `failed`: the last question got none."""

    overview: Overview | None = None
    answers: bool = False
    failed: bool = False
    seconds: dict[int, TrafficSecond] = {}

    def take(self, overview: Overview) -> None:
        self.overview = overview
        self.answers, self.failed = True, False
        self.seconds |= {one.second: one for one in overview.seconds}
        oldest = int(overview.now) - KEPT_S
        self.seconds = {second: one for second, one in self.seconds.items() if second > oldest}


class MetaView:
    """Asks every replica for its overview, at most once a second and only while somebody looks.

    `pool` is for these questions alone. What a replica said stays while the replica is known.
    `own` is what the meta-router knows by itself.
    """

    tick_s = 1.0

    def __init__(
        self,
        meta: MetaRouter,
        pool: UpstreamPool,
        name: str,
        own: MetaPages,
    ) -> None:
        self._meta = meta
        self._own = own
        self._problems = ProblemLog()
        self._pool = pool
        self._name = name
        self._known: dict[str, _Known] = {}
        self._rows: dict[str, tuple[int, DecisionRow]] = {}
        self._version = 0
        self._asked_s = -FRESH_S
        self._asking = asyncio.Lock()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._started = int(time.time())
        self._build = own_build()

    async def refresh(self, *, watched: bool) -> None:
        """Poll all replicas, unless no page is open or the last answers are fresh."""
        self._check(time.monotonic())
        if not watched:
            return
        async with self._asking:
            if (began := time.monotonic()) - self._asked_s < FRESH_S:
                return
            replicas = self._meta.table.replicas()
            names = {one.name for one in replicas}
            for gone in [name for name in self._known if name not in names]:
                del self._known[gone]
            await asyncio.gather(*(self._ask(one) for one in replicas))
            # Whose client leaves before that has asked for nobody.
            self._asked_s = began

    def overview(self, since: int, decisions: int, after: int = 0) -> Overview:
        """Return the present of the whole mesh; see `View.overview`."""
        overviews = [one.overview for one in self._known.values() if one.overview and one.answers]
        workers = merge_workers(one.workers for one in overviews)
        replicas = self._replicas()
        ready = self._meta.ready(time.monotonic())
        counters: dict[str, int] = {}
        for one in overviews:
            for name, count in one.counters.items():
                counters[name] = counters.get(name, 0) + count
        newest = sorted((row for _, row in self._rows.values()), key=lambda row: row.decided_at)
        rows = (
            self.changes(after, decisions)[0]
            if after
            else newest[max(0, len(newest) - decisions) :]
        )
        return Overview(
            role="meta-router",
            name=self._name,
            version=self._build.version,
            started=self._started,
            now=time.time(),
            ready=ready,
            reason="" if ready else "no ready replica",
            policy=", ".join(sorted({one.policy for one in overviews})),
            block_size=overviews[0].block_size if overviews else 0,
            buckets=sum_buckets(replicas, workers),
            replicas=replicas,
            workers=workers,
            counters=counters,
            seconds=merge_seconds(
                second
                for known in self._known.values()
                for second in known.seconds.values()
                if second.second >= since
            ),
            decisions=rows,
            prefixes=merge_prefixes(
                [(one.buckets[0].bucket, one.prefixes) for one in overviews if one.buckets]
            ),
            shadows=add_reports(report for one in overviews for report in one.shadows),
            tuning=[row for one in overviews for row in one.tuning],
            policies=merge_policies(row for one in overviews for row in one.policies),
            cursor=self._version,
            warnings=[
                *self._own.warnings(),
                *merge_warnings((one.name, one.warnings) for one in overviews),
            ],
            formats=in_words(self._build.formats),
            programs=merge_programs(row for one in overviews for row in one.programs),
            problems=merge_problems(
                [self._problems.rows(time.monotonic()), *(one.problems for one in overviews)]
            ),
            traffic=merge_traffic(
                (one.traffic for one in overviews),
                queued=sum(one.waiting_requests for one in workers),
            ),
            models=merge_models(one.models for one in overviews),
            tenants=merge_tenants(one.tenants for one in overviews),
            marks=merge_marks(one.marks for one in overviews),
            sites=self._own.sites(),
        )

    def _check(self, now: float) -> None:
        """Check the replicas, and the connection over which their heartbeats come."""
        states = [
            ReplicaState(one.replica, one.bucket, one.ready, one.reason, one.draining)
            for one in self._replicas()
        ]
        faults = warning_problems(self._own.faults(), self._name)
        self._problems.check([*replica_problems(states), *faults], now)

    def changes(self, after: int, limit: int) -> tuple[list[DecisionRow], int]:
        """Return the newest `limit` rows that changed behind cursor `after`, and the new cursor."""
        rows = [row for changed, row in self._rows.values() if changed > after]
        return rows[max(0, len(rows) - limit) :], self._version

    async def latest(self, limit: int, search: RecordSearch) -> Callable[[], list[DecisionRow]]:
        """Return how to find the newest requests of all replicas that are looked for, newest first.
        A replica of a version that cannot search answers its newest.
        """
        query = {"limit": str(limit), "find": " ".join(search.words)}
        if search.tenant is not None:
            query["tenant"] = search.tenant
        path = f"/v1/decisions?{urlencode(query)}"
        found = [
            row
            for answer in readable(await self.ask_all(path), _Rows)
            for row in answer.decisions
            if search.takes(row.request_id, row.tenant, row.worker)
        ]
        return lambda: sorted(found, key=lambda row: -row.decided_at)[:limit]

    async def find(self, request_id: str, viewer: Viewer | None = None) -> bytes | None:
        """Return what the first replica that knows the request says of it; None when none does, or
        when it is not the viewer's.
        """
        # Another tenant's request may have the same id: replicas are to look for the viewer's.
        bodies = await self.ask_all(f"/v1/decisions/{quote(request_id, safe='')}", viewer)
        if viewer is None:
            return bodies[0] if bodies else None
        for body in bodies:
            for detail in readable((body,), TenantDetail):
                if (seen := detail_for(detail, viewer)) is not None:
                    return body if viewer.apart else seen
        return None

    def buckets(self) -> tuple[str, ...]:
        """Return the buckets that there are."""
        return tuple(self._meta.table.buckets())

    async def ask_all(self, path: str, viewer: Viewer | None = None) -> list[bytes]:
        """Return the bodies of all replicas' good answers, each replica asked as `viewer`."""
        headers: Headers = ()
        if viewer is not None:
            named = (TENANT_HEADER.encode(), viewer.tenant.encode("latin-1", "replace"))
            headers = (named, (ROLES_HEADER, b"view"))

        async def ask(replica: RouterReplica) -> bytes | None:
            async with self._slots:
                return await fetch_ok(
                    self._pool, replica.url, path, timeout_s=TIMEOUT_S, headers=headers
                )

        answers = await asyncio.gather(*(ask(one) for one in self._meta.table.replicas()))
        return [body for body in answers if body is not None]

    async def _ask(self, replica: RouterReplica) -> None:
        known = self._known.setdefault(replica.name, _Known())
        before = known.overview
        after = before.cursor if before else 0
        since = max(known.seconds, default=0) - 2
        path = f"/v1/overview?since={max(0, since)}&after={after}&limit={CHANGES}"
        async with self._slots:
            body = await fetch_ok(self._pool, replica.url, path, timeout_s=TIMEOUT_S)
        overview = None if body is None else next(readable((body,), Overview), None)
        if overview is None or overview.role != "router":
            known.answers, known.failed = False, True
            return
        if before is not None and before.started != overview.started:
            # Another life counts its changes from 0 again.
            overview = msgspec.structs.replace(overview, cursor=0)
        known.take(overview)
        self._take_rows(overview.decisions)

    def _take_rows(self, rows: list[DecisionRow]) -> None:
        for row in rows:
            before = self._rows.pop(row.key, None)
            if before is not None and before[1] == row:
                self._rows[row.key] = before
                continue
            self._version += 1
            self._rows[row.key] = (self._version, row)
        while len(self._rows) > KEPT_ROWS:
            del self._rows[next(iter(self._rows))]

    def _replicas(self) -> list[ReplicaRow]:
        """Return every known replica: in its own words, or why it has none."""
        now = time.monotonic()
        rows: list[ReplicaRow] = []
        table = self._meta.table
        membership = table.membership
        for replica in table.replicas():
            known = self._known.get(replica.name)
            said = known.overview if known is not None else None
            own = (
                next((one for one in said.replicas if one.replica == said.name), None)
                if said
                else None
            )
            why_not = membership.why_not(replica.name, now) or ""
            if known is not None and known.failed:
                why_not = why_not or "does not answer"
            if own is None:
                own = ReplicaRow(
                    replica=replica.name.removeprefix(f"{replica.bucket}/"),
                    bucket=replica.bucket,
                    url=replica.url,
                    ready=not why_not,
                    reason=why_not,
                    draining=False,
                    kv_events=False,
                    active_requests=replica.active_requests,
                )
            elif why_not:
                own = msgspec.structs.replace(own, ready=False, reason=why_not)
            rows.append(msgspec.structs.replace(own, url=replica.url))
        return compare_replicas(rows)


def readable(bodies: Iterable[bytes], kind: type[AnswerT]) -> Iterator[AnswerT]:
    """Decode answers as `kind`, without those that are not: of another version, or cut off."""
    for body in bodies:
        with suppress(*UNREADABLE):
            yield msgspec.json.decode(body, type=kind)
