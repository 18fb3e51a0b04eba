"""The examples of vLLM, SGLang and TensorRT-LLM: what engine, sidecar and routers say fits."""

import json
import re
import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from kvmesh.cli import app
from kvmesh.settings.roles import RouterSettings, WorkerSettings
from tests.integration.chart.rendering import OVERLAYS, kustomize
from tests.integration.deploy.test_deploy import DEPLOY, settings_names

pytestmark = pytest.mark.integration

ENGINES = ("vllm", "sglang", "tensorrt-llm")
PUBLISHED = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}
READ = ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657")


@cache
def compose(engine: str) -> dict[str, Any]:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on this machine")
    folder = DEPLOY / "compose"
    files = ("--file", folder / "compose.yaml", "--file", folder / f"engines-{engine}.yaml")
    made = subprocess.run([program, *files, "config"], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    services: dict[str, Any] = yaml.safe_load(made.stdout)["services"]
    return services


def deployment(overlay: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the containers of a Deployment by name."""
    (found,) = (
        one
        for one in kustomize(overlay)
        if one["kind"] == "Deployment" and one["metadata"]["name"] == name
    )
    return {one["name"]: one for one in found["spec"]["template"]["spec"]["containers"]}


def settings_of(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environment: dict[str, str]
) -> Any:
    """Return what a process of ours takes these words and variables for."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    _, bound, _ = app.parse_args(words)
    return bound.arguments["settings"]


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    found = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    address = found.get("KVMESH_ENGINE_URL", "").replace("$(POD_IP)", "10.0.0.7")
    return found | ({"KVMESH_ENGINE_URL": address} if address else {})


@pytest.mark.parametrize(
    "overlay", [one for one in OVERLAYS if "sglang" in one or "tensorrt" in one]
)
def test_another_engine_takes_the_place_of_vllm(overlay: str) -> None:
    names = {one["metadata"]["name"] for one in kustomize(overlay) if one["kind"] == "Deployment"}

    assert "vllm-chat" not in names
    assert {"router-chat", "router-code", "meta-router"} < names
    assert len(names & {"sglang-chat", "trtllm-chat"}) == 1


def test_sglang_publishes_where_its_sidecar_finds_it_in_pages_of_several_tokens() -> None:
    containers = deployment("sglang", "sglang-chat")
    words = containers["sglang"]["args"]

    events = json.loads(words[words.index("--kv-events-config") + 1])
    assert events == {"publisher": "zmq"} | PUBLISHED
    assert "--page-size=16" in words
    assert RouterSettings().cost.kv_cache_block_size in (None, 16)
    assert not [one for one in containers["kvmesh-worker"]["env"] if "KV_EVENTS" in one["name"]], (
        "SGLang tells where they are"
    )
    documented = (DEPLOY.parent / "docs/reference/engines.md").read_text()
    for word in words:
        if word.startswith("--") and not re.match("--(host|port)", word):
            assert word.split("=")[0] in documented, word


@pytest.mark.parametrize("events", [True, False])
def test_tensorrt_llm_has_blocks_of_one_size_everywhere(
    monkeypatch: pytest.MonkeyPatch, *, events: bool
) -> None:
    overlay = "tensorrt-llm" if events else "tensorrt-llm-approximate"
    containers = deployment(overlay, "trtllm-chat")
    (config,) = (
        yaml.safe_load(one["data"]["trtllm.yaml"])["kv_cache_config"]
        for one in kustomize(overlay)
        if one["kind"] == "ConfigMap" and "trtllm.yaml" in one["data"]
    )
    with monkeypatch.context() as patch:
        worker = settings_of(patch, ["worker"], environment_of(containers["kvmesh-worker"]))
    router = settings_of(
        monkeypatch, ["router"], environment_of(deployment(overlay, "router-chat")["router"])
    )

    assert isinstance(worker, WorkerSettings)
    assert worker.kv_events == events
    endpoints = (worker.kv_events_endpoint, worker.kv_replay_endpoint)
    assert endpoints == (READ if events else ("", ""))
    published = config.get("kv_events_config", {})
    assert {name: published.get(name) for name in PUBLISHED} == (
        PUBLISHED if events else dict.fromkeys(PUBLISHED)
    )
    sizes = {config["tokens_per_block"], worker.kv_cache_block_size}
    assert sizes == {router.cost.kv_cache_block_size} == {32}


@pytest.mark.parametrize("engine", ENGINES)
def test_docker_compose_takes_real_engines_for_one_bucket(engine: str) -> None:
    services = compose(engine)

    for name in ("engine-chat-0", "engine-chat-1"):
        made = services[name]
        assert "kvmesh" not in made["image"]
        assert made["cap_drop"] == ["ALL"]
        assert "/v1" not in str(made["healthcheck"]["test"])
        (device,) = made["deploy"]["resources"]["reservations"]["devices"]
        assert device["device_ids"] == [name[-1]]
    assert services["engine-code-0"]["command"][0] == "mocker"
    known = {f"KVMESH_{name.upper()}" for name in settings_names()}
    for name in ("worker-chat-0", "worker-chat-1", "router-chat-0"):
        assert set(services[name]["environment"]) <= known


def test_the_engines_of_compose_and_cluster_publish_alike() -> None:
    for engine, container in (("vllm", "vllm-chat"), ("sglang", "sglang-chat")):
        overlay = "prod" if engine == "vllm" else engine
        words = compose(engine)["engine-chat-0"]["command"]
        there = deployment(overlay, container)[engine]["args"]
        flag = "--kv-events-config"

        assert words[words.index(flag) + 1] == there[there.index(flag) + 1]


@pytest.mark.parametrize("events", [True, False])
def test_tensorrt_llm_in_compose_is_followed_only_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, *, events: bool
) -> None:
    if events:
        monkeypatch.setenv("KVMESH_KV_EVENTS", "true")
        monkeypatch.setenv("TRTLLM_CONFIG", "../k8s/overlays/tensorrt-llm/trtllm.yaml")
    services = compose.__wrapped__("tensorrt-llm")
    sizes = {
        services[name]["environment"]["KVMESH_KV_CACHE_BLOCK_SIZE"]
        for name in ("worker-chat-0", "worker-chat-1", "router-chat-0", "router-chat-1")
    }
    mounted = [one for one in map(str, services["engine-chat-0"]["volumes"]) if "trtllm" in one]
    worker = services["worker-chat-0"]
    with monkeypatch.context() as patch:
        settings = settings_of(patch, worker["command"], worker["environment"])

    assert sizes == {"32"}
    assert settings.kv_events == events
    assert settings.kv_events_endpoint == "tcp://engine-chat-0:5557"
    assert ("tensorrt-llm-approximate" in mounted[0]) == (not events)
