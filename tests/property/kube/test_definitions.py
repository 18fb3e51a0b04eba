"""What the definitions admit can be read; what they refuse is refused where it matters."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.app.picker.kube_objects import InferenceObjective, InferencePool, Pod, read
from kvmesh.app.picker.pool_endpoints import find_endpoints
from kvmesh.errors import CodecError
from tests.integration.kube import api_server
from tests.integration.kube.crds import misfits

pytest.importorskip("kubernetes_validate")

PART = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)
PREFIX = st.sampled_from(["", "app.kubernetes.io/", "kvmesh/", "llm-d.ai/"])
LABELS = st.dictionaries(
    st.builds("{}{}".format, PREFIX, PART), PART | st.just(""), min_size=1, max_size=8
)
PORTS = st.lists(st.integers(1, 65535), min_size=1, max_size=8, unique=True)
REFERENCE = st.fixed_dictionaries(
    {"name": st.just("picker"), "port": st.just({"number": 9002})},
    optional={
        "group": st.just(""),
        "kind": st.just("Service"),
        "failureMode": st.sampled_from(["FailOpen", "FailClose"]),
    },
)
POOLS = st.fixed_dictionaries(
    {
        "selector": LABELS.map(lambda labels: {"matchLabels": labels}),
        "targetPorts": PORTS.map(lambda ports: [{"number": port} for port in ports]),
    },
    optional={
        "appProtocol": st.sampled_from(["http", "kubernetes.io/h2c"]),
        "endpointPickerRef": REFERENCE,
    },
)


def raw(one: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(one).encode())


@given(spec=POOLS)
def test_every_pool_that_its_definition_admits_can_be_read(spec: dict[str, Any]) -> None:
    made = {**api_server.pool(), "spec": spec}
    assert misfits(made) == []

    pool = read(InferencePool, raw(made))

    assert pool.labels == spec["selector"]["matchLabels"]
    assert list(pool.ports) == [one["number"] for one in spec["targetPorts"]]
    member = api_server.pod("vllm-0", "10.0.0.1")
    member["metadata"]["labels"] = {**pool.labels, "more": "x"}
    found = find_endpoints(pool, [read(Pod, raw(member))])
    assert len(found.endpoints) == len(pool.ports)


@given(priority=st.integers(-(2**31), 2**31 - 1) | st.none())
def test_every_objective_that_its_definition_admits_can_be_read(priority: int | None) -> None:
    for group in api_server.OBJECTIVES:
        made = api_server.objective("one", priority, group=group)
        assert misfits(made) == []
        assert read(InferenceObjective, raw(made)).spec.priority == priority


@pytest.mark.parametrize(
    "spec",
    [
        {"targetPorts": []},
        {"targetPorts": [{"number": 0}]},
        {"targetPorts": [{"number": 65536}]},
        {"targetPorts": [{"number": port} for port in range(1, 10)]},
        {"targetPorts": [{"number": "8000"}]},
        {"selector": {"matchLabels": {}}},
        {"selector": {"matchLabels": {"app": 1}}},
        {"selector": {}},
        {"appProtocol": "grpc"},
        {"endpointPickerRef": {"name": "", "port": {"number": 9002}}},
        {"endpointPickerRef": {"name": "p", "port": {"number": 9002}, "failureMode": "Open"}},
    ],
)
def test_what_the_definition_of_a_pool_refuses_is_refused_here_too(spec: dict[str, Any]) -> None:
    made = api_server.pool()
    made["spec"] |= spec

    assert misfits(made) != []
    with pytest.raises(CodecError, match="InferencePool chat: "):
        read(InferencePool, raw(made))


def test_what_the_pretended_api_server_has_are_pods_of_kubernetes() -> None:
    import kubernetes_validate  # noqa: PLC0415  it may be missing

    made = api_server.pod("vllm-0", "10.0.0.1")

    kubernetes_validate.validate(made, "1.32", strict=True)
