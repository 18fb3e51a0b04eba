"""Several processes behind one port: which is which, and one page of all metrics."""

import os
import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.app.process.place import VARIABLE, Place, own_place
from kvmesh.app.process.processes import ProcessPlan, run_processes
from kvmesh.app.process.running import Stop
from kvmesh.app.process.shared_metrics import merge_pages
from kvmesh.errors import ConfigError

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
