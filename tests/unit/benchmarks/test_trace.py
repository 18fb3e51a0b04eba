import sys
from collections.abc import Iterator

from benchmarks.trace.calls import Call, CallLog, count
from kvmesh.core.insight.summary_pace import SummaryPace
from kvmesh.core.routing.sessions import session_key

DATA = Call(0, "transport/http/server/connection.py", 97, "Connection.data_received")


def own() -> Iterator[int]:
    yield 1


def test_calls_of_kvmesh_are_counted_and_no_others() -> None:
    log = CallLog()
    pace = SummaryPace()

    sys.setprofile(log)
    pace.due(1.0, changed=False)
    pace.due(2.0, changed=True)
    session_key("s")
    list(own())
    sys.setprofile(None)

    functions = [(one.depth, one.function) for one in log.calls]
    assert functions == [
        (0, "SummaryPace.due"),
        (0, "SummaryPace.due"),
        (0, "session_key"),
    ]
    assert log.calls[0].path == "core/insight/summary_pace.py"


def test_a_call_into_another_file_is_a_crossing() -> None:
    calls = [
        DATA,
        Call(1, DATA.path, 235, "Connection._serve"),
        Call(2, "app/front/front.py", 50, "Routes.__call__"),
        Call(3, "app/front/front.py", 50, "Routes.__call__"),
        Call(1, "core/routing/scheduler.py", 81, "Scheduler.schedule"),
        Call(0, "transport/http/upstream/call.py", 9, "UpstreamCall.on_head"),
    ]

    found = count(calls)

    assert (found.calls, found.functions, found.files, found.crossings) == (6, 5, 4, 2)
    assert found.by_package["app.front"] == (2, 1, 1)
    assert found.tree == tuple(calls)
