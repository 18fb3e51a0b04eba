"""Endpoints of pools drawn by hypothesis, against what the protocol says in so many words."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.picker.kube_objects import InferencePool, Pod, read
from kvmesh.app.picker.pool_endpoints import Endpoint, find_endpoints
from tests.integration.kube import api_server

Drawn = dict[str, Any]


def make_pool(*ports: int) -> InferencePool:
    return read(InferencePool, msgspec.Raw(json.dumps(api_server.pool("chat", *ports)).encode()))


def make_pod(one: Drawn) -> Pod:
    made = api_server.pod(one["name"], one["ip"], ready=one["ready"], app=one["app"])
    made["metadata"]["annotations"] = {"llm-d.ai/active-ports": one["active"]}
    if one["active"] is None:
        made["metadata"]["annotations"] = {}
    return read(Pod, msgspec.Raw(json.dumps(made).encode()))


PODS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.from_regex(r"[a-z][a-z0-9.-]{0,70}[a-z0-9]", fullmatch=True),
            "ip": st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "", "nowhere"]),
            "ready": st.booleans(),
            "app": st.sampled_from(["vllm", "web"]),
            "active": st.sampled_from([None, "8000", "8001,8000", "x", ""]),
        }
    ),
    max_size=8,
    unique_by=lambda one: str(one["name"]),
)


@given(drawn=PODS, ports=st.sampled_from([(8000,), (8000, 8001), (8001,)]))
def test_endpoints_are_the_ready_pods_with_the_labels_times_the_ports(
    drawn: list[Drawn], ports: tuple[int, ...]
) -> None:
    naive: dict[str, str] = {}
    for one in sorted(drawn, key=lambda one: str(one["name"])):
        if one["app"] == "vllm" and one["ready"] and one["ip"] not in ("", "nowhere"):
            active = ports if one["active"] is None else one["active"].split(",")
            for port in ports:
                if str(port) in map(str, active):
                    host = f"[{one['ip']}]" if ":" in one["ip"] else one["ip"]
                    naive.setdefault(f"{host}:{port}", one["name"])

    found = find_endpoints(make_pool(*ports), [make_pod(one) for one in reversed(drawn)])

    assert {one.address: one.pod for one in found.endpoints} == naive
    assert found.addresses == naive.keys()
    workers = parse_workers([one.as_worker() for one in found.endpoints], empty=True)
    assert [one.url.removeprefix("http://") for one in workers] == [
        one.address for one in found.endpoints
    ]
    mine = [one for one in drawn if one["app"] == "vllm"]
    asleep = [one for one in mine if one["ip"] == "" or not one["ready"]]
    assert found.unready == len([one for one in asleep if one["ip"] != "nowhere"])


@pytest.mark.parametrize(
    ("label", "role"),
    [("prefill", "prefill"), ("decode", "decode"), ("prefill-decode", "both"), ("encode", "")],
)
def test_the_role_label_of_llm_d_is_the_worker_s_role(label: str, role: str) -> None:
    made = api_server.pod("vllm-0", "10.0.0.1")
    made["metadata"]["labels"]["llm-d.ai/role"] = label

    found = find_endpoints(make_pool(8000), [read(Pod, msgspec.Raw(json.dumps(made).encode()))])

    (endpoint,) = found.endpoints
    assert endpoint.role == role
    (worker,) = parse_workers([endpoint.as_worker()])
    assert (worker.worker, worker.role or "") == ("vllm-0", role)


def test_names_that_no_subject_may_hold_are_made_into_such() -> None:
    dotted = {"name": "a.b", "ip": "10.0.0.1", "ready": True, "app": "vllm", "active": None}
    dashed = {**dotted, "name": "a-b", "ip": "10.0.0.2"}

    found = find_endpoints(make_pool(8000), [make_pod(dotted), make_pod(dashed)])

    assert [(one.worker, one.address) for one in found.endpoints] == [
        ("10-0-0-1-8000", "10.0.0.1:8000"),
        ("a-b", "10.0.0.2:8000"),
    ]
    assert isinstance(found.endpoints[0], Endpoint)


def optioned(text: str, *ports: int) -> tuple[list[str], tuple[str, ...]]:
    """Return the workers of a pod with these options, and what is wrong with them."""
    made = api_server.pod("vllm-0", "10.0.0.1")
    made["metadata"]["annotations"]["kvmesh/worker-options"] = text
    pods = [read(Pod, msgspec.Raw(json.dumps(made).encode()))]
    found = find_endpoints(make_pool(*ports), pods)
    return [one.as_worker() for one in found.endpoints], found.wrong


def test_an_annotation_says_where_an_engine_s_events_are() -> None:
    texts, wrong = optioned("zmq=tcp://{ip}:555{index},label=gpu:h100", 8000, 8001)

    assert wrong == ()
    assert texts == [
        "vllm-0-8000=http://10.0.0.1:8000,zmq=tcp://10.0.0.1:5550,label=gpu:h100",
        "vllm-0-8001=http://10.0.0.1:8001,zmq=tcp://10.0.0.1:5551,label=gpu:h100",
    ]


@pytest.mark.parametrize("text", ["zmq=5557", "colour=red", "{0}", "x" * 1025, "role=king", "a\nb"])
def test_an_annotation_that_cannot_be_is_said_and_its_pod_is_a_worker_without(text: str) -> None:
    texts, (wrong,) = optioned(text, 8000)

    assert texts == ["vllm-0=http://10.0.0.1:8000"]
    assert wrong.startswith("Pod vllm-0: annotation kvmesh/worker-options: ")
