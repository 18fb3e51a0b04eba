"""What a dashboard shows of a mesh: buckets, replicas, workers, traffic. All of it is JSON."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.core.insight.traffic import TrafficSecond
from kvmesh.core.routing.shadow_policy import ShadowReport

Agreement = Literal["agrees", "disagrees", "unchecked"]


class WorkerRow(msgspec.Struct, frozen=True):
    """One worker. Blocks are KV blocks: `used_blocks` of `total_blocks` as the engine says,
    `cached_blocks` as the index knows. `active_requests`, `prefill_tokens` are what routers booked.

    `ttft_ms` is the median of the last first tokens, None before any. Of its last `attempts`
    requests `failures` failed; `stage` is where that puts it, a `Standing`.
    """

    worker: str
    bucket: str
    url: str
    models: tuple[str, ...]
    trust: str
    usable: bool
    why_not: str
    used_blocks: int
    total_blocks: int
    cached_blocks: int
    running_requests: int
    waiting_requests: int
    active_requests: int
    active_blocks: int
    prefill_tokens: int
    ms_per_token: float
    ttft_ms: float | None
    stage: str = "in"
    failures: int = 0
    attempts: int = 0


class ReplicaRow(msgspec.Struct, frozen=True):
    """One router replica. `lag` is how many records it is behind the furthest of its bucket,
    `queued` how many requests it holds back (only told by the replica itself).

    `digest` is of the index at `applied_sequence` of the stream `created`, over the workers that
    `scope` names; digests compare where the other three are equal.
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


class BucketRow(msgspec.Struct, frozen=True):
    """One bucket, summed."""

    bucket: str
    replicas: int
    ready_replicas: int
    workers: int
    usable_workers: int
    active_requests: int
    queued: int
    used_blocks: int
    total_blocks: int


class PrefixRow(msgspec.Struct, frozen=True):
    """A beginning of `depth` blocks that requests lately shared; `core.insight.hot_prefixes`.

    Keys are hexadecimal; `parent` is the prefix it goes on from, "" for none. `workers` hold it
    whole, as the index knows.
    """

    key: str
    parent: str
    bucket: str
    depth: int
    requests: float
    share: float
    cached_share: float
    workers: tuple[str, ...]


class Overview(msgspec.Struct, frozen=True):
    """Everything at one moment. `now` and the seconds of `seconds` are Unix time.

    `started` tells one life of the process from another, `cursor` is where the changes go on that
    come behind `decisions`. `warnings` are sentences: what makes routing worse than it could be.
    """

    role: Literal["router", "meta-router"]
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
    cursor: int = 0
    warnings: list[str] = []


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
        rows.append(
            BucketRow(
                bucket=bucket,
                replicas=len(routing),
                ready_replicas=sum(one.ready for one in routing),
                workers=len(serving),
                usable_workers=sum(one.usable for one in serving),
                active_requests=sum(one.active_requests for one in serving),
                queued=sum(one.queued for one in routing),
                used_blocks=sum(one.used_blocks for one in serving),
                total_blocks=sum(one.total_blocks for one in serving),
            )
        )
    return rows


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
    )
