from kvmesh.app.members.warning_lines import by_reason


def test_workers_with_the_same_reason_share_a_line() -> None:
    said = [("w2", "no events"), ("w1", "lost"), ("w0", "no events")]

    assert by_reason(said, "routed approximately") == (
        "w1: routed approximately: lost",
        "w0, w2: routed approximately: no events",
    )
    assert by_reason([], "routed approximately") == ()
