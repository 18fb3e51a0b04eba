from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.views.worker_figures import WORKER_CARE
from kvmesh.bounds import MOST_NAMED
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import status_attempt

ERROR = status_attempt(500, 0.01)


def fleet(count: int) -> tuple[Membership, FailureCare]:
    members = Membership()
    for number in range(count):
        members.add(f"w{number:03}", 0.0)
    return members, FailureCare("worker", members, lambda _: None, 0.0, lambda: 1.0)


def fail(members: Membership, count: int) -> None:
    for name in members.members()[:count]:
        for _ in range(3):
            members.note(name, ERROR, 1.0)


def test_who_is_not_ready_is_named_and_who_drains_is_not() -> None:
    members, care = fleet(3)
    members.observe("w000", 1, 1.0, ready=False, why="its engine hangs")
    members.observe("w001", 1, 1.0, draining=True)

    assert care.warnings() == ("w000: gets no requests: its engine hangs",)


def test_a_fleet_that_fails_makes_two_lines() -> None:
    members, care = fleet(500)
    fail(members, 500)

    out, spared = care.warnings()

    assert "w001" in out
    assert f" and {166 - MOST_NAMED} more: gets no requests: ejected" in out
    assert f" and {334 - MOST_NAMED} more: fails: gets requests all the same" in spared
    assert max(len(out), len(spared)) < 300


def test_each_member_stands_somewhere_and_failing_ones_that_get_requests_are_counted() -> None:
    members, care = fleet(2)
    fail(members, 2)

    samples = {
        (one.name, *one.labels.values()): one.value
        for family in WORKER_CARE.of(care.statistics).metrics()
        for one in family.samples
    }

    assert samples["kvmesh_worker_stage", "w000", "ejected"] == 1
    assert samples["kvmesh_worker_stage", "w000", "in"] == 0
    assert samples["kvmesh_workers_spared",] == 1
    assert samples["kvmesh_worker_ejections_total",] == 2
