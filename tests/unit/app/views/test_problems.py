from pathlib import Path

import pytest

from kvmesh.app.views.problems import (
    PAGES,
    ReplicaState,
    WorkerState,
    replica_problems,
    traffic_problems,
    warning_problems,
    worker_problems,
)
from kvmesh.app.views.traffic_rows import TrafficRow

RUNBOOK = Path(__file__).parents[4] / "docs" / "operate" / "runbook.md"
FINE = WorkerState("w9", "chat", usable=True)


@pytest.mark.parametrize(
    ("state", "kind", "severity"),
    [
        (WorkerState("w0", "chat", usable=False, why_not="y", hung=True), "hung", "critical"),
        (
            WorkerState("w0", "chat", usable=False, why_not="y", stage="ejected", hung=True),
            "hung",
            "critical",
        ),
        (WorkerState("w0", "chat", usable=False, why_not="y", stage="down"), "down", "critical"),
        (
            WorkerState("w0", "chat", usable=False, why_not="y", stage="ejected"),
            "failing",
            "warning",
        ),
        (
            WorkerState("w0", "chat", usable=True, why_not="y", stage="trickle"),
            "failing",
            "warning",
        ),
        (
            WorkerState("w0", "chat", usable=True, why_not="y", stage="suspect"),
            "failing",
            "warning",
        ),
        (
            WorkerState("w0", "chat", usable=True, why_not="y", stage="overloaded"),
            "overloaded",
            "warning",
        ),
        (WorkerState("w0", "chat", usable=False, why_not="y"), "not-ready", "warning"),
        (WorkerState("w0", "chat", usable=True, trust="degraded"), "not-followed", "warning"),
    ],
)
def test_what_is_wrong_with_a_worker(state: WorkerState, kind: str, severity: str) -> None:
    (found,) = worker_problems([state, FINE])

    assert (found.kind, found.severity, found.who, found.bucket) == (kind, severity, "w0", "chat")
    assert found.why == "y" or "degraded" in found.why


def test_a_bucket_without_a_worker_to_use_is_critical() -> None:
    states = [WorkerState("w0", "code", usable=False, leaving=True), FINE]

    (found,) = worker_problems(states)

    assert (found.kind, found.severity, found.who) == ("no-worker", "critical", "code")


def test_replicas_that_are_not_ready_or_disagree() -> None:
    states = [
        ReplicaState("r0", "chat", ready=False, reason="catching up"),
        ReplicaState("r1", "chat", ready=False, draining=True),
        ReplicaState("r2", "chat", ready=True, disagrees=True),
        ReplicaState("r3", "chat", ready=False),
    ]

    found = [(one.kind, one.who, one.why) for one in replica_problems(states)]

    assert found[0] == ("replica", "r0", "catching up")
    assert [one[:2] for one in found[1:]] == [("replica-disagrees", "r2"), ("replica", "r3")]
    assert found[2][2] == "not ready"


def test_traffic_that_fails_or_waits() -> None:
    few = TrafficRow(100.0, {"5xx": 4.0, "4xx": 90.0})
    many = TrafficRow(10.0, {"5xx": 0.5, "cut": 0.5}, held=3)
    rare = TrafficRow(0.05, {"5xx": 0.05})

    assert [*traffic_problems(few, "chat")] == [*traffic_problems(rare, "chat")] == []
    errors, held = traffic_problems(many, "chat")
    assert (errors.kind, errors.who, errors.why) == (
        "errors",
        "chat",
        "10% of requests fail: 0.5/s 5xx, 0.5/s cut",
    )
    assert held.why.startswith("3 requests wait")


def test_each_warning_is_a_problem_of_its_process() -> None:
    found = [(one.who, one.why, one.kind) for one in warning_problems(("a", "b"), "r0", "chat")]

    assert found == [("r0", "a", "warning"), ("r0", "b", "warning")]


def test_the_runbook_has_each_page() -> None:
    headings = {
        line.lstrip("#").strip().lower().replace(" ", "-")
        for line in RUNBOOK.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    }

    for page in PAGES.values():
        name, _, anchor = page.partition("#")
        assert name == "runbook"
        assert anchor in headings
