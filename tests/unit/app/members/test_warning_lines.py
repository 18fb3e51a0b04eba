from kvmesh.app.members.warning_lines import by_reason


def test_workers_with_the_same_reason_share_a_line() -> None:
    said = [("w2", "no events"), ("w1", "lost"), ("w0", "no events")]

    assert by_reason(said, "routed approximately") == (
        "w1: routed approximately: lost",
        "w0, w2: routed approximately: no events",
    )
    assert by_reason([], "routed approximately") == ()


def test_many_workers_are_counted_rather_than_named() -> None:
    (line,) = by_reason(((f"w{number:02}", "lost") for number in range(20)), "no events")

    assert line == "w00, w01, w02, w03, w04, w05, w06, w07 and 12 more: no events: lost"
