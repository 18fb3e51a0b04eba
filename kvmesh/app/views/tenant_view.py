"""What of the pages one tenant may see: its own requests, and what workers there are."""

from collections.abc import Iterable

import msgspec

from kvmesh.app.views.decision_view import DecisionDetail, DecisionRow
from kvmesh.app.views.overview import BucketRow, Overview, WorkerRow
from kvmesh.app.views.problems import NO_WORKER
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.core.admission.access import Viewer
from kvmesh.core.insight.explain import HIDDEN
from kvmesh.core.insight.problem_log import ProblemRow


class TenantDetail(msgspec.Struct, frozen=True):
    """What a tenant may know of one of its requests where it shares cached blocks with others."""

    request_id: str
    note: str
    outcome: DecisionRow


class TenantStatus(msgspec.Struct, frozen=True):
    """What a tenant may know of a process: that it serves, and its own requests by state."""

    name: str
    ready: bool
    tenant: str
    requests: dict[str, int] = {}


def rows_for(rows: Iterable[DecisionRow], viewer: Viewer) -> list[DecisionRow]:
    """Return the rows of the viewer's tenant, without others' cached blocks in them, and without
    the addresses in what failed.
    """
    own = (
        msgspec.structs.replace(row, failures=tuple(map(_placeless, row.failures)))
        if row.failures
        else row
        for row in rows
        if row.tenant == viewer.tenant
    )
    if viewer.apart:
        return list(own)
    return [
        msgspec.structs.replace(
            row,
            why="",
            overlap_blocks=0,
            round_robin_blocks=None,
            score=0.0,
            cached_tokens=None,
        )
        for row in own
    ]


def _placeless(failure: str) -> str:
    """Return which worker failed: why is told with its address."""
    return f"{failure.partition(': ')[0]} failed"


def programs_for(rows: Iterable[ProgramRow], viewer: Viewer) -> list[ProgramRow]:
    """Return the programs of the viewer's tenant, without what it shares with others: where they
    are cached, and why they wait.
    """
    own = (row for row in rows if row.tenant == viewer.tenant)
    if viewer.apart:
        return list(own)
    return [msgspec.structs.replace(row, workers=(), reserved_tokens=0, why="") for row in own]


def overview_for(whole: Overview, viewer: Viewer, limit: int) -> Overview:
    """Return an overview with the newest `limit` requests of a tenant, and nothing that counts or
    lists the requests of all: no traffic, no hot prefixes, no loads. Of what is wrong it has that
    nobody is served.
    """
    rows = rows_for(whole.decisions, viewer)
    return Overview(
        role=whole.role,
        name=whole.name,
        version=whole.version,
        started=whole.started,
        now=whole.now,
        ready=whole.ready,
        reason=whole.reason,
        policy=whole.policy,
        block_size=whole.block_size,
        buckets=[
            BucketRow(one.bucket, one.replicas, one.ready_replicas, one.workers, one.usable_workers)
            for one in whole.buckets
        ],
        replicas=[],
        workers=[
            WorkerRow(
                worker=one.worker,
                bucket=one.bucket,
                url="",
                models=one.models,
                trust=one.trust,
                usable=one.usable,
                why_not="" if one.usable else "not usable now",
            )
            for one in whole.workers
        ],
        counters={},
        seconds=[],
        decisions=rows[max(0, len(rows) - limit) :],
        cursor=whole.cursor,
        programs=programs_for(whole.programs, viewer),
        problems=[problem_for(one) for one in whole.problems if one.kind == NO_WORKER],
        tenants=[one for one in whole.tenants if one.tenant == viewer.tenant],
    )


def problem_for(row: ProblemRow) -> ProblemRow:
    """Return a problem without what it tells of workers and their requests."""
    return msgspec.structs.replace(row, why="no worker may get requests now")


def detail_for(detail: DecisionDetail | TenantDetail, viewer: Viewer | None) -> bytes | None:
    """Return all about a request as JSON, None where it is another tenant's."""
    if viewer is None:
        return msgspec.json.encode(detail)
    rows = rows_for((detail.outcome,), viewer)
    if not rows:
        return None
    if viewer.apart:
        return msgspec.json.encode(msgspec.structs.replace(detail, outcome=rows[0]))
    return msgspec.json.encode(TenantDetail(detail.request_id, HIDDEN, rows[0]))
