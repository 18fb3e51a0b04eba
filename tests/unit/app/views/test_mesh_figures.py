from kvmesh.app.views.mesh_figures import UNREAD, VERSIONS, MemberVersions
from kvmesh.core.journal.unread import Newer


def test_members_are_counted_by_role_and_version() -> None:
    reported = MemberVersions(
        routers=("1.4.0", "1.3.0"), pickers=("1.4.0",), workers=("1.3.0", "1.3.0", "")
    )

    [metric] = VERSIONS.of(lambda: reported).metrics()

    assert [(one.labels["role"], one.labels["version"], one.value) for one in metric.samples] == [
        ("router", "1.4.0", 1),
        ("router", "1.3.0", 1),
        ("picker", "1.4.0", 1),
        ("worker", "1.3.0", 2),
        ("worker", "untold", 1),
    ]


def test_what_is_not_read_is_counted_by_kind() -> None:
    met = [Newer("worker w0", "journal", 2), Newer("worker w1", "journal", 3)]

    [metric] = UNREAD.of(lambda: met).metrics()

    assert {one.labels["kind"]: one.value for one in metric.samples} == {
        "journal": 2,
        "bookings": 0,
        "snapshot": 0,
        "manifest": 0,
        "programs": 0,
    }
