"""What is wrong now, in the words of whoever has to mend it, with the page that says how."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from kvmesh.app.views.traffic_rows import TrafficRow
from kvmesh.bounds import counted
from kvmesh.core.insight.problem_log import Problem, Severity

NO_WORKER: Final = "no-worker"
PAGES: Final = {
    NO_WORKER: "runbook#no-usable-worker",
    "hung": "runbook#hung-engine",
    "down": "runbook#worker-down",
    "failing": "runbook#worker-fails",
    "overloaded": "runbook#worker-overloaded",
    "not-ready": "runbook#worker-not-ready",
    "not-followed": "runbook#worker-not-followed",
    "replica": "runbook#replica-not-ready",
    "replica-disagrees": "runbook#indexes-disagree",
    "errors": "runbook#requests-fail",
    "held": "runbook#requests-are-held",
    "warning": "runbook#operations-runbook",
}
"""Each kind of problem, and where docs/operate/runbook.md says what to do about it."""

ERROR_SHARE: Final = 0.05
"""Of requests: from so many that fail for a fault of ours or an engine's on it is a problem."""

LEAST_PER_S: Final = 0.1
"""Below this rate of failures there is none."""

_BY_STAGE: Final = {
    "down": "down",
    **dict.fromkeys(("ejected", "suspect", "trickle"), "failing"),
    "overloaded": "overloaded",
}


class WorkerState(msgspec.Struct, frozen=True):
    """One worker as it stands: `stage` is a `Standing`, `trust` a `Trust`; `hung`: its engine takes
    requests, or connections, and does not answer; `leaving`: it was told to get nothing new.
    """

    worker: str
    bucket: str
    usable: bool
    why_not: str = ""
    stage: str = "in"
    trust: str = "exact"
    hung: bool = False
    leaving: bool = False


class ReplicaState(msgspec.Struct, frozen=True):
    """One router replica as it stands."""

    replica: str
    bucket: str
    ready: bool
    reason: str = ""
    draining: bool = False
    disagrees: bool = False


def problem(kind: str, severity: Severity, who: str, why: str, bucket: str = "") -> Problem:
    """Return a problem with its page."""
    return Problem(kind, severity, who, why, PAGES[kind], bucket)


def worker_problems(workers: Sequence[WorkerState]) -> Iterator[Problem]:
    """Yield what is wrong with workers, and with buckets that have none to use."""
    for one in workers:
        if (kind := _kind_of(one)) is not None:
            why = one.why_not or f"its KV events are not followed: {one.trust}"
            severity: Severity = "critical" if kind in ("hung", "down") else "warning"
            yield problem(kind, severity, one.worker, why, one.bucket)
    for bucket in sorted({one.bucket for one in workers}):
        there = [one for one in workers if one.bucket == bucket]
        if not any(one.usable for one in there):
            why = f"none of {counted(len(there), 'worker')} may get requests: they are answered 503"
            yield problem(NO_WORKER, "critical", bucket, why, bucket)


def _kind_of(one: WorkerState) -> str | None:
    """Return what is wrong with a worker, None for nothing."""
    if one.leaving:
        return None
    if one.hung:
        return "hung"
    if (kind := _BY_STAGE.get(one.stage)) is not None:
        return kind
    if not one.usable:
        return "not-ready"
    return "not-followed" if one.trust == "degraded" else None


def replica_problems(replicas: Iterable[ReplicaState]) -> Iterator[Problem]:
    """Yield what is wrong with router replicas."""
    for one in replicas:
        if one.disagrees:
            why = "its index differs from its siblings' at the same place in the journal"
            yield problem("replica-disagrees", "warning", one.replica, why, one.bucket)
        if not one.ready and not one.draining:
            why = one.reason or "not ready"
            yield problem("replica", "critical", one.replica, why, one.bucket)


def traffic_problems(row: TrafficRow, bucket: str) -> Iterator[Problem]:
    """Yield what the traffic of a bucket shows: too many that fail, requests held back."""
    failed = sum(row.errors_per_s.get(one, 0.0) for one in ("5xx", "cut"))
    share = failed / row.requests_per_s if row.requests_per_s else 0.0
    if failed >= LEAST_PER_S and share >= ERROR_SHARE:
        by = ", ".join(f"{rate:.2g}/s {name}" for name, rate in row.errors_per_s.items() if rate)
        # The share stays out of the key, and changes with every look.
        yield problem("errors", "critical", bucket, f"{share:.0%} of requests fail: {by}", bucket)
    if row.held:
        why = f"{counted(row.held, 'request')} waiting at the router for a worker with room"
        yield problem("held", "warning", bucket, why, bucket)


def warning_problems(lines: Iterable[str], who: str, bucket: str = "") -> Iterator[Problem]:
    """Yield a problem a warning of a process: they are told apart by their words."""
    for line in lines:
        yield problem("warning", "warning", who, line, bucket)
