from kvmesh.app.figures.mesh import VERSIONS, MemberVersions


def test_members_are_counted_by_role_and_version() -> None:
    told = MemberVersions(("1.4.0", "1.3.0"), (), ("1.3.0", "1.3.0", ""))

    [metric] = VERSIONS.of(lambda: told).metrics()

    assert [(one.labels["role"], one.labels["version"], one.value) for one in metric.samples] == [
        ("router", "1.4.0", 1),
        ("router", "1.3.0", 1),
        ("worker", "1.3.0", 2),
        ("worker", "untold", 1),
    ]
