import json
from typing import Any

import msgspec
import pytest

from kvmesh.app.picker.kube_objects import (
    OBJECTIVES,
    PODS,
    POOLS,
    InferenceObjective,
    InferencePool,
    Pod,
    address_of,
    name_in,
    read,
)
from kvmesh.errors import CodecError
from tests.integration.kube import api_server


def raw(one: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(one).encode())


def make_pod(**status: Any) -> Pod:
    made = api_server.pod("vllm-0", "10.0.0.1")
    return read(Pod, raw({**made, "status": {**made["status"], **status}}))


def annotated(text: str, name: str = "inference.networking.k8s.io/active-ports") -> Pod:
    made = api_server.pod("vllm-0", "10.0.0.1")
    return read(Pod, raw({**made, "metadata": {**made["metadata"], "annotations": {name: text}}}))


def test_collections_lie_where_the_api_server_has_them() -> None:
    assert PODS.path("llm") == "/api/v1/namespaces/llm/pods"
    assert POOLS.path("llm") == "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
    assert [str(one) for one in (PODS, *OBJECTIVES)] == [
        "pods",
        "inferenceobjectives.llm-d.ai/v1alpha2",
        "inferenceobjectives.inference.networking.x-k8s.io/v1alpha2",
    ]


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "Initialized", "status": "True"}], False),
        ([], False),
        (None, False),
    ],
)
def test_a_pod_is_ready_when_its_condition_says_so(conditions: object, ready: bool) -> None:
    assert make_pod(conditions=conditions).ready is ready


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    made = api_server.pod("vllm-0", "10.0.0.1")
    leaving = {**made["metadata"], "deletionTimestamp": "2026-08-01T10:00:00Z"}

    assert not read(Pod, raw({**made, "metadata": leaving})).ready


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8001", (8001,)),
        ("8001, 8000", (8000, 8001)),
        ("8001,9999,-1,x,,1e3", (8001,)),
        ("9" * 5000, ()),
        ("", ()),
    ],
)
def test_an_annotation_names_the_ports_that_a_pod_serves(text: str, ports: tuple[int, ...]) -> None:
    assert annotated(text).ports_of((8000, 8001)) == ports
    assert annotated(text, "llm-d.ai/active-ports").ports_of((8000, 8001)) == ports
    assert annotated(text, "other").ports_of((8000, 8001)) == (8000, 8001)


@pytest.mark.parametrize("given", ["example.org", "fe80::1%eth0", "10.0.0.1:80", "9" * 400])
def test_what_is_no_address_is_refused_with_the_pod_s_name(given: str) -> None:
    with pytest.raises(CodecError, match="Pod vllm-0: its podIP"):
        address_of(make_pod(podIP=given))


def test_a_pool_has_labels_and_each_port_once() -> None:
    pool = read(InferencePool, raw(api_server.pool("chat", 8001, 8000, 8001)))

    assert pool.labels == {"app": "vllm"}
    assert pool.ports == (8001, 8000)
    assert pool.spec.endpoint_picker_ref is not None
    assert pool.spec.endpoint_picker_ref.failure_mode == "FailOpen"


def test_an_objective_is_of_one_pool_of_the_extension_s_group() -> None:
    one = api_server.objective("urgent", 3)
    alien = {**one, "spec": {"poolRef": {"group": "example.org", "name": "chat"}}}
    short = {**one, "spec": {"poolRef": {"name": "chat"}}}

    assert read(InferenceObjective, raw(one)).is_of("chat")
    assert not read(InferenceObjective, raw(one)).is_of("code")
    assert not read(InferenceObjective, raw(alien)).is_of("chat")
    assert read(InferenceObjective, raw(short)).is_of("chat")


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 10**25, 0.5, "1"])
def test_a_priority_beyond_int32_is_refused_with_the_objective_s_name(priority: object) -> None:
    made = api_server.objective("urgent", 3)

    with pytest.raises(CodecError, match="InferenceObjective urgent: "):
        read(InferenceObjective, raw({**made, "spec": {**made["spec"], "priority": priority}}))


def test_the_name_is_found_in_what_is_otherwise_wrong() -> None:
    assert name_in(raw({"metadata": {"name": "a"}, "spec": 7})) == "a"
    assert name_in(raw({"metadata": {"name": "a" * 254}})) == ""
    assert name_in(raw(7)) == ""
    assert name_in(msgspec.Raw(b"[" * 100_000)) == ""
