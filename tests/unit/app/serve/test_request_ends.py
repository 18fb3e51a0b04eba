from kvmesh.app.members.failure_care import FailureCounts
from kvmesh.app.serve.request_ends import RequestEnds


def test_ends_are_counted_by_outcome_and_class_of_status() -> None:
    ends = RequestEnds()
    for end, status in (("finished", 200), ("finished", 503), ("failed", 502), ("finished", 700)):
        ends.add(end, status)  # type: ignore[arg-type]  # all are ends
    ends.add("client_gone", 0)

    counts = {key: count for key, count in ends.items() if count}

    assert counts == {
        ("client_gone", "none"): 1,
        ("finished", "2xx"): 1,
        ("finished", "5xx"): 2,
        ("unserved", "5xx"): 1,
    }


def test_what_alarms_ask_for_is_there_before_it_happens() -> None:
    shown = dict(RequestEnds().items())

    assert shown["finished", "5xx"] == shown["unserved", "5xx"] == shown["cut", "2xx"] == 0


def test_failures_have_kinds_from_a_fixed_list_and_go_with_their_worker() -> None:
    counts = FailureCounts()
    for worker, kind in (("w0", "500"), ("w0", "599"), ("w0", "reset"), ("w1", "418")):
        counts.add(worker, kind)

    assert counts.as_dict() == {
        ("w0", "500"): 1,
        ("w0", "5xx"): 1,
        ("w0", "reset"): 1,
        ("w1", "4xx"): 1,
    }

    counts.keep({"w1"})

    assert counts.as_dict() == {("w1", "4xx"): 1}
