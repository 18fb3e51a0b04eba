import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import structlog

from kvmesh.app.members.failure_care import SPARED, FailureCare
from kvmesh.app.members.prober import Probe
from kvmesh.app.views.worker_figures import WORKER_CARE
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, failed_attempt, status_attempt
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

RESET = failed_attempt("reset")
REFUSED = failed_attempt("refused")


class Fleet:
    """Members without a server behind them, and what is done about their failures."""

    def __init__(self, members: int = 3, *, settles: bool = True) -> None:
        self.now = 100.0
        self.settled: list[float] = []
        self.membership = Membership()
        for number in range(members):
            self.membership.add(f"w{number}", 0.0)
        self.care = FailureCare(
            "worker",
            self.membership,
            self.probe,
            1.0,
            lambda: self.now,
            self.settled.append if settles else None,
        )
        self.membership.health.asks = True

    def probe(self, member: str) -> Probe | None:
        return None if member == "w2" else Probe(member, "http://127.0.0.1:1", "/health")

    def metrics(self) -> dict[str, float]:
        """Return every sample that is not 0, as `name{label,label}`."""
        return {
            f"{one.name}{{{','.join(one.labels.values())}}}": one.value
            for family in WORKER_CARE.of(self.care.statistics).metrics()
            for one in family.samples
            if one.value
        }


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    pool = UpstreamPool()
    tasks = [asyncio.create_task(one) for one in fleet.care.running(pool, pool)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.close()


def test_who_is_left_out_is_named_with_the_reason_and_who_is_spared_too() -> None:
    fleet = Fleet(members=4)
    assert fleet.care.warnings() == ()

    fleet.membership.note("w0", REFUSED, 100.0)
    fleet.membership.note("w1", RESET, 100.0)
    fleet.membership.note("w2", RESET, 100.0)
    lines = fleet.care.warnings()

    assert len(lines) == 3
    assert "w0" in lines[0]
    assert "does not answer its health check" in lines[0]
    assert any("suspect, its last request failed (reset)" in one for one in lines[1:])
    assert any(SPARED in one for one in lines)
    fleet.now += 0.5
    assert fleet.care.warnings() == lines, "the words stay the same"


def test_metrics_tell_where_each_member_stands_and_what_failing_costs() -> None:
    fleet = Fleet()
    for _ in range(3):
        fleet.membership.note("w0", status_attempt(500), 100.0)
    fleet.membership.note("w1", status_attempt(429), 100.0)
    fleet.care.failures.add("w0", "500")
    metrics = fleet.metrics()

    share = metrics.pop("kvmesh_worker_failure_share{w0}")
    assert 0.5 < share < 1.0
    assert metrics == {
        "kvmesh_worker_failures_total{w0,500}": 1.0,
        "kvmesh_worker_stage{w0,ejected}": 1.0,
        "kvmesh_worker_stage{w1,overloaded}": 1.0,
        "kvmesh_worker_stage{w2,in}": 1.0,
        "kvmesh_worker_ejections_total{}": 1.0,
        "kvmesh_workers_spared{}": 1.0,
    }


def scope() -> Scope:
    return Scope(b"q", lambda error, request_id: None)  # noqa: ARG005  a `Report`


async def test_a_suspect_is_asked_at_once_and_found_to_be_gone(eventually: Eventually) -> None:
    fleet = Fleet()
    fleet.care.wake()
    async with running(fleet):
        fleet.membership.note("w0", RESET, 100.0)
        fleet.membership.note("w2", RESET, 100.0)
        fleet.care.wake()

        await eventually(lambda: fleet.membership.health.stage("w0") is Stage.DOWN)

        assert fleet.membership.health.stage("w2") is Stage.SUSPECT, "nobody knows where it is"


async def test_old_failures_settle_and_changes_are_told_once(eventually: Eventually) -> None:
    fleet = Fleet()
    with structlog.testing.capture_logs() as logs:
        async with running(fleet):
            for _ in range(3):
                fleet.membership.note("w0", status_attempt(500), 100.0)
            fleet.care.failures.add("gone", "500")
            await eventually(lambda: len(fleet.settled) >= 2)
            fleet.membership.note("w0", SERVED, 100.0)
            await eventually(lambda: any(one["log_level"] == "info" for one in logs))

    reported = [(one["event"], one["member"]) for one in logs if "member" in one]
    assert reported == [("member left out", "w0"), ("member is trusted again", "w0")]
    assert "kvmesh_worker_failures_total{gone,500}" not in fleet.metrics()


async def test_requests_wait_while_nobody_may_be_given_one(eventually: Eventually) -> None:
    fleet = Fleet(members=1)
    fleet.membership.note("w0", REFUSED, 100.0)
    went_on: list[str] = []
    async with running(fleet):
        assert fleet.care.patience.hold(scope(), lambda: went_on.append("q"))

        fleet.membership.observe("w9", 1, 100.0)

        await eventually(lambda: went_on == ["q"])


async def test_a_suspicion_of_moments_is_not_worth_a_line(eventually: Eventually) -> None:
    fleet = Fleet(settles=False)
    with structlog.testing.capture_logs() as logs:
        async with running(fleet):
            fleet.membership.note("w2", RESET, 100.0)
            fleet.care.failures.add("gone", "500")
            await eventually(
                lambda: "kvmesh_worker_failures_total{gone,500}" not in fleet.metrics()
            )
            await asyncio.sleep(0)

    assert [one for one in logs if "member" in one] == []
    assert fleet.settled == []
