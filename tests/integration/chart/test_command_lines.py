"""The reader of containers refuses what kvmesh would refuse, and what Kubernetes would not fill."""

from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from kvmesh.settings.roles import RouterSettings
from tests.integration.chart.command_lines import parse_line, read_line

Manifest = dict[str, Any]
MESH = {
    "kind": "ConfigMap",
    "metadata": {"name": "mesh"},
    "data": {"KVMESH_NATS_URL": "nats://nats:4222", "KVMESH_STREAM_REPLICAS": "3"},
}


def container(command: str, *arguments: str, **variables: str) -> Manifest:
    return {
        "name": "one",
        "args": [command, *arguments],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "envFrom": [{"configMapRef": {"name": "mesh"}}],
    }


def parsed(one: Manifest) -> Any:
    return parse_line(read_line(one, [MESH]))


def test_flags_variables_and_maps_become_settings() -> None:
    pod = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    one = container(
        "router",
        "--bucket=chat",
        KVMESH_DRAIN_S="7",
        KVMESH_STREAM_REPLICAS="2",
        KVMESH_TOKENIZER="/models/a",
    )
    url = {"name": "KVMESH_ADVERTISE_URL", "value": "http://$(POD_IP):8000"}
    one["env"] += [pod, url]

    settings = parsed(one)

    assert isinstance(settings, RouterSettings)
    assert settings.bucket == "chat"
    assert settings.http.drain_s == 7
    assert settings.http.advertise_url == "http://10.244.0.2:8000"
    assert settings.nats.nats_url == "nats://nats:4222"
    assert settings.nats.stream_replicas == 2, "env counts before envFrom"
    assert settings.tokenizer == Path("/models/a")


@pytest.mark.parametrize(
    "wrong",
    [
        container("router", "--no-such-flag"),
        container("router", "--http-port", "70000"),
        container("router", KVMESH_ROUTER_MODE="fastest"),
        container("router", KVMESH_STREAM_REPLICAS="three"),
        container("no-such-command"),
    ],
)
def test_what_kvmesh_refuses_is_refused(wrong: Manifest) -> None:
    with pytest.raises(CycloptsError):
        parsed(wrong)


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(ValueError, match="KVMESH_BUKET"):
        parsed(container("router", KVMESH_BUKET="chat"))
    with pytest.raises(ValueError, match="KVMESH_RULE"):
        parsed(container("worker", KVMESH_ENGINE_URL="http://e", KVMESH_RULE="a"))


def test_a_reference_to_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="POD_IP"):
        parsed(container("router", KVMESH_ADVERTISE_URL="http://$(POD_IP):8000"))
    with pytest.raises(KeyError, match="mesh"):
        read_line(container("router"), [])
    with pytest.raises(TypeError, match="8000"):
        read_line({"name": "one", "args": ["router", "--http-port", 8000]}, [])
