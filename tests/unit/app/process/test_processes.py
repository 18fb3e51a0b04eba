"""Several processes behind one port: which is which, and one page of all metrics."""

import asyncio
import contextlib
import os
import socket
import tempfile
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.app.process.place import VARIABLE, Place, own_place
from kvmesh.app.process.processes import ProcessPlan, run_processes
from kvmesh.app.process.running import Stop
from kvmesh.app.process.shared_metrics import SharedMetrics, merge_pages
from kvmesh.app.views.metrics_page import MetricsPage
from kvmesh.errors import ConfigError, RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.wire.problem import Problem

ONE = b"""# HELP a_total Things.
# TYPE a_total counter
a_total 1.0
# HELP h Times.
# TYPE h histogram
h_bucket{le="1.0"} 2.0
h_bucket{le="+Inf"} 3.0
h_sum 4.5
h_count 3.0
"""
TWO = b"""# HELP a_total Things.
# TYPE a_total counter
a_total 5.0
# HELP only_here What one process alone has.
# TYPE only_here gauge
only_here{worker="a} b\\"c"} 7.0
"""


def test_a_process_knows_its_place_by_the_variable() -> None:
    assert own_place({}) is None
    place = own_place({VARIABLE: "1/3//tmp/a/b"})

    assert place == Place(1, 3, "/tmp/a/b")  # noqa: S108  a name
    assert place.own_port(8000) == 8002


def test_pages_become_one_that_prometheus_reads() -> None:
    page = merge_pages({0: ONE, 1: TWO, 2: b""}).decode()

    families = {one.name: one for one in text_string_to_metric_families(page)}
    assert page.count("# TYPE a_total") == 1
    assert [(one.labels, one.value) for one in families["a"].samples] == [
        ({"process": "0"}, 1.0),
        ({"process": "1"}, 5.0),
    ]
    buckets = [one for one in families["h"].samples if one.name == "h_bucket"]
    assert [one.labels for one in buckets] == [
        {"process": "0", "le": "1.0"},
        {"process": "0", "le": "+Inf"},
    ]
    (only,) = families["only_here"].samples
    assert only.labels == {"process": "1", "worker": 'a} b"c'}


def busy(_: str) -> bytes:
    raise RequestError("pages take too long", status=503)


async def test_a_process_without_time_for_its_page_is_left_out_of_the_others(
    stack: contextlib.AsyncExitStack,
) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    one = SharedMetrics(Place(0, 2, folder), lambda _: ONE)
    two = SharedMetrics(Place(1, 2, folder), busy)
    for shared in (one, two):
        await shared.serve(stack)

    page = await one.page("")

    assert page == merge_pages({0: ONE})
    with pytest.raises(RequestError):
        await two.page("")
    assert faults == []


async def test_a_client_is_told_that_there_is_no_time_for_a_page_of_all(
    stack: contextlib.AsyncExitStack,
) -> None:
    class Asked:
        def fail(self, problem: Problem) -> None:
            self.status = problem.status

    folder, asked = stack.enter_context(tempfile.TemporaryDirectory()), Asked()
    metrics = MetricsPage()

    await metrics._serve_all(
        cast("Exchange", asked), SharedMetrics(Place(0, 1, folder), busy), frozenset()
    )

    assert asked.status == 503


@pytest.mark.parametrize(("count", "port"), [(257, 8000), (2, 65534), (2, 0)])
async def test_more_processes_than_ports_are_refused(count: int, port: int) -> None:
    plan = ProcessPlan(count=count, host="127.0.0.1", port=port, drain_s=0.0, bucket="b")

    with pytest.raises(ConfigError, match=f"--processes {count} --http-port {port}"):
        await run_processes(plan, Stop())


async def test_a_port_that_somebody_has_is_refused_though_it_could_be_shared() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plan = ProcessPlan(count=2, host="127.0.0.1", port=port, drain_s=0.0, bucket="b")

        with pytest.raises(ConfigError, match=f"port {port} .*another --http-port"):
            await run_processes(plan, Stop())


def test_the_dashboard_is_a_meta_router_over_each_process() -> None:
    plan = ProcessPlan(
        count=2, host="127.0.0.1", port=8000, drain_s=0.0, bucket="b", dashboard_port=8003
    )
    children = plan.children("/nowhere")

    assert [child.spec.name for child in children] == ["process-0", "process-1", "dashboard"]
    assert children[2].spec.args[:3] == [
        "meta-router",
        "--replica=b=http://127.0.0.1:8001",
        "--replica=b=http://127.0.0.1:8002",
    ]
    assert plan.ports() == [8000, 8001, 8002, 8003]
    assert VARIABLE not in os.environ
