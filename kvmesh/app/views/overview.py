"""What a dashboard shows of a mesh: buckets, replicas, workers, traffic. All of it is JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import msgspec

from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.figure import Shown, combine
from kvmesh.app.views.figure_table import OF_REPLICAS, OF_WORKERS
from kvmesh.app.views.policy_view import PolicyRow, TuningRow
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.app.views.traffic_rows import ModelRow, TenantRow, TrafficRow
from kvmesh.core.insight.mark_log import Mark
from kvmesh.core.insight.problem_log import ProblemRow
from kvmesh.core.insight.traffic import TrafficSecond
from kvmesh.core.routing.shadow_policy import ShadowReport
from kvmesh.core.sites.sites import SiteView

Agreement = Literal["agrees", "disagrees", "unchecked"]

_TRUSTS: Final = ("exact", "estimated", "approx", "degraded", "catching-up")


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker. Blocks are KV blocks: `used_blocks` of `total_blocks` as the engine says,
    `cached_blocks` as the index knows. `active_requests`, `prefill_tokens` are what routers booked.

    `ttft_ms` is the median of the last first tokens, None before any. Of its last `attempts`
    requests `failures` failed; `stage` is where that puts it, a `Standing`; `hung`: its engine
    takes requests or connections and does not answer. `figures` are its other numbers. `version` is
    the sidecar's, "": it tells none; its records have `journal_format`.
    """

    worker: str
    bucket: str
    url: str
    models: tuple[str, ...]
    trust: str
    usable: bool
    why_not: str
    used_blocks: int = 0
    total_blocks: int = 0
    cached_blocks: int = 0
    running_requests: int = 0
    waiting_requests: int = 0
    active_requests: int = 0
    active_blocks: int = 0
    prefill_tokens: int = 0
    ms_per_token: float = 0.0
    ttft_ms: float | None = None
    stage: str = "in"
    failures: int = 0
    attempts: int = 0
    figures: dict[str, float] = {}
    version: str = ""
    journal_format: int = 1
    hung: bool = False


class ReplicaRow(msgspec.Struct, frozen=True):
    """One router replica. `lag` is how many records it is behind the furthest of its bucket,
    `queued` how many requests it holds back; that and `figures` are only told by itself.

    `digest` is of the index at `applied_sequence` of the stream `created`, over the workers that
    `scope` names; digests compare where the other three are equal. `version` is "" where it tells
    none, `formats` are those it reads, in words. Gateways ask a "picker", clients a "router".
    """

    replica: str
    bucket: str
    url: str
    ready: bool
    reason: str
    draining: bool
    kv_events: bool
    created: str = ""
    applied_sequence: int = 0
    digest: str = ""
    scope: str = ""
    digests_compared: int = 0
    mismatches: int = 0
    active_requests: int = 0
    queued: int = 0
    lag: int = 0
    agreement: Agreement = "unchecked"
    figures: dict[str, float] = {}
    version: str = ""
    formats: str = ""
    role: Literal["router", "picker"] = "router"


class BucketRow(msgspec.Struct, frozen=True):
    """One bucket, summed."""

    bucket: str
    replicas: int
    ready_replicas: int
    workers: int
    usable_workers: int
    active_requests: int = 0
    queued: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    figures: dict[str, float] = {}


class PrefixRow(msgspec.Struct, frozen=True):
    """A beginning of `depth` blocks that requests lately shared; `core.insight.hot_prefixes`.

    Keys are hexadecimal; `parent` is the prefix it goes on from, "" for none. `workers` hold it
    whole, as the index knows. `text` is its beginning, "" where that is not kept.
    """

    key: str
    parent: str
    bucket: str
    depth: int
    requests: float
    share: float
    cached_share: float
    workers: tuple[str, ...]
    text: str = ""


class Trip(msgspec.Struct, frozen=True):
    """A request that was served at another site, and why; `at` is when its answer began."""

    request: str
    site: str
    why: str
    at: float


class SitesStatus(msgspec.Struct, frozen=True):
    """`site` is the own one: `stayed` requests were served there, `trips` are the last that were
    not. `told_bytes` of digests were sent to the `sites`.
    """

    site: str
    stayed: int
    told_bytes: int
    sites: list[SiteView]
    trips: list[Trip]


class Overview(msgspec.Struct, frozen=True):
    """Everything at one moment. `now` and the seconds of `seconds` are Unix time.
    `formats` are those the process reads, in words, `started` tells one life of it from another,
    `cursor` is where the changes go on that come behind `decisions`. `policies` are of buckets
    whose policy was changed while they ran, `tuning` of replicas that tune. `programs` are those
    that wait, then those that run and pause, the oldest first. `warnings` are sentences: what makes
    routing worse than it could be; `problems` are what is wrong now, them included, the worst
    first. `traffic` is None to who may not see all; `models` and `tenants` are the busiest.
    `marks` are what changed in the last ten minutes. `sites` None: there is this one alone.
    """

    role: Literal["router", "picker", "meta-router"]
    name: str
    version: str
    started: int
    now: float
    ready: bool
    reason: str
    policy: str
    block_size: int
    buckets: list[BucketRow]
    replicas: list[ReplicaRow]
    workers: list[WorkerRow]
    counters: dict[str, int]
    seconds: list[TrafficSecond]
    decisions: list[DecisionRow]
    prefixes: list[PrefixRow] = []
    shadows: list[ShadowReport] = []
    policies: list[PolicyRow] = []
    tuning: list[TuningRow] = []
    cursor: int = 0
    warnings: list[str] = []
    formats: str = ""
    programs: list[ProgramRow] = []
    problems: list[ProblemRow] = []
    traffic: TrafficRow | None = None
    models: list[ModelRow] = []
    tenants: list[TenantRow] = []
    marks: list[Mark] = []
    sites: SitesStatus | None = None


RowT = TypeVar("RowT", WorkerRow, ReplicaRow, BucketRow)


def number(row: WorkerRow | ReplicaRow | BucketRow, key: str) -> float | None:
    """Return a figure of a row, a field or one of its `figures`; None when it is not told."""
    value: float | None = getattr(row, key, row.figures.get(key))
    return value


_FIELDS: Final = {
    one: frozenset(one.__struct_fields__) for one in (WorkerRow, ReplicaRow, BucketRow)
}


def with_numbers(row: RowT, numbers: Mapping[str, float]) -> RowT:
    """Return the row with these figures: fields where it has such, else among its `figures`."""
    more = numbers.keys() - _FIELDS[type(row)]
    if not more:
        return msgspec.structs.replace(row, **numbers)
    fields = {key: value for key, value in numbers.items() if key not in more}
    figures = row.figures | {key: numbers[key] for key in sorted(more)}
    return msgspec.structs.replace(row, **fields, figures=figures)


def compare_replicas(rows: Sequence[ReplicaRow]) -> list[ReplicaRow]:
    """Return the rows with `lag` and `agreement`, sorted by bucket and name.

    Digests differ by rights while replicas are at different sequences; then what the replicas
    themselves found when they compared their histories counts.
    """
    furthest: dict[tuple[str, str], int] = {}
    digests: dict[tuple[str, str, str, int], set[str]] = {}
    counts: dict[tuple[str, str, str, int], int] = {}
    for row in rows:
        stream, place = (row.bucket, row.created), _place(row)
        furthest[stream] = max(furthest.get(stream, 0), row.applied_sequence)
        digests.setdefault(place, set()).add(row.digest)
        counts[place] = counts.get(place, 0) + 1
    compared: list[ReplicaRow] = []
    for row in rows:
        place = _place(row)
        agreement: Agreement = "unchecked"
        if row.digest and len(digests[place]) > 1:
            agreement = "disagrees"
        elif row.digest and (counts[place] > 1 or (row.digests_compared and not row.mismatches)):
            agreement = "agrees"
        lag = furthest[row.bucket, row.created] - row.applied_sequence
        compared.append(msgspec.structs.replace(row, lag=lag, agreement=agreement))
    return sorted(compared, key=lambda row: (row.bucket, row.replica))


def _place(row: ReplicaRow) -> tuple[str, str, str, int]:
    return row.bucket, row.created, row.scope, row.applied_sequence


def sum_buckets(replicas: Iterable[ReplicaRow], workers: Iterable[WorkerRow]) -> list[BucketRow]:
    """Return every bucket that has a replica or a worker, sorted by name."""
    replicas_of: dict[str, list[ReplicaRow]] = {}
    workers_of: dict[str, list[WorkerRow]] = {}
    for replica in replicas:
        replicas_of.setdefault(replica.bucket, []).append(replica)
    for worker in workers:
        workers_of.setdefault(worker.bucket, []).append(worker)
    rows: list[BucketRow] = []
    for bucket in sorted({*replicas_of, *workers_of}):
        routing, serving = replicas_of.get(bucket, []), workers_of.get(bucket, [])
        row = BucketRow(
            bucket=bucket,
            replicas=len(routing),
            ready_replicas=sum(one.ready for one in routing),
            workers=len(serving),
            usable_workers=sum(one.usable for one in serving),
        )
        numbers = _combined(OF_WORKERS, serving) | _combined(OF_REPLICAS, routing)
        rows.append(with_numbers(row, numbers))
    return rows


def _combined(
    shown: Iterable[Shown], rows: Sequence[WorkerRow] | Sequence[ReplicaRow]
) -> dict[str, float]:
    return {
        one.key: value
        for one in shown
        if one.bucket is not None
        and (value := combine(one.bucket, (number(row, one.key) for row in rows))) is not None
    }


def merge_workers(views: Iterable[Sequence[WorkerRow]]) -> list[WorkerRow]:
    """Return each worker once: replicas share bookings, so the busiest view is the fullest.

    A worker is usable if some replica may use it; the worst trust and the most failures are shown.
    """
    merged: dict[tuple[str, str], WorkerRow] = {}
    for row in (row for rows in views for row in rows):
        other = merged.get((row.bucket, row.worker))
        whole = row if other is None else _merge_two(row, other)
        merged[row.bucket, row.worker] = whole
    return [merged[key] for key in sorted(merged)]


def _merge_two(row: WorkerRow, other: WorkerRow) -> WorkerRow:
    fuller, less = (row, other) if row.active_requests > other.active_requests else (other, row)
    failing = max(row, other, key=lambda one: (one.failures, one.attempts))
    usable = row.usable or other.usable
    whole = msgspec.structs.replace(
        fuller,
        stage=failing.stage,
        failures=failing.failures,
        attempts=failing.attempts,
        hung=row.hung or other.hung,
        trust=max(row.trust, other.trust, key=_distrust),
        usable=usable,
        why_not="" if usable else fuller.why_not,
    )
    numbers = {
        one.key: value
        for one in OF_WORKERS
        if (value := combine(one.replicas, (number(fuller, one.key), number(less, one.key))))
        is not None
    }
    return with_numbers(whole, numbers)


def _distrust(trust: str) -> int:
    return _TRUSTS.index(trust) if trust in _TRUSTS else len(_TRUSTS)


def merge_warnings(said: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return each warning once, behind it who gave it; `said` is (replica, its warnings)."""
    by: dict[str, list[str]] = {}
    for replica, lines in said:
        for line in lines:
            by.setdefault(line, []).append(replica)
    return [f"{line} ({', '.join(sorted(names))})" for line, names in sorted(by.items())]


def merge_prefixes(overviews: Sequence[tuple[str, Sequence[PrefixRow]]]) -> list[PrefixRow]:
    """Return the prefixes of several replicas, those of one bucket added up, the hottest first.

    Each overview is (bucket, its rows); a replica without rows counts as one that saw nothing.
    """
    replicas: dict[str, int] = {}
    merged: dict[tuple[str, str], PrefixRow] = {}
    for bucket, rows in overviews:
        replicas[bucket] = replicas.get(bucket, 0) + bool(rows)
        for row in rows:
            other = merged.get((bucket, row.key))
            merged[bucket, row.key] = row if other is None else _add_prefixes(other, row)
    shared = [
        msgspec.structs.replace(row, share=row.share / max(1, replicas[bucket]))
        for (bucket, _), row in merged.items()
    ]
    known = {row.key for row in shared}
    whole = [
        row if row.parent in known else msgspec.structs.replace(row, parent="") for row in shared
    ]
    return sorted(whole, key=lambda row: (row.depth, -row.requests, row.key))


def _add_prefixes(one: PrefixRow, other: PrefixRow) -> PrefixRow:
    requests = one.requests + other.requests
    cached = one.cached_share * one.requests + other.cached_share * other.requests
    return msgspec.structs.replace(
        one,
        parent=one.parent or other.parent,
        requests=requests,
        share=one.share + other.share,
        cached_share=cached / requests,
        workers=tuple(sorted({*one.workers, *other.workers})),
        text=one.text or other.text,
    )
