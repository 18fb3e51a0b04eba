"""What the chart makes of buckets, tokenizers, engines, discovery and NATS."""

import asyncio
import base64
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.mesh.discovery import KubernetesSource, parse_source
from kvmesh.settings.roles import RouterSettings
from tests.integration.chart.rendering import (
    CHART,
    Manifest,
    Values,
    chart,
    containers,
    named,
    notes,
    pods,
    read_all,
    render,
)
from tests.integration.support.live_router import mockers, router

pytestmark = pytest.mark.integration
QWEN = "Qwen/Qwen2.5-7B-Instruct"
WITHOUT_POLICIES: Values = {"networkPolicy": {"enabled": False}}


def pod(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return dict(named(manifests, kind)[name]["spec"]["template"]["spec"])


def container(spec: Manifest, name: str) -> Manifest:
    return next(dict(one) for one in spec["containers"] if one["name"] == name)


def variables(one: Manifest) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in one.get("env", ())}


def flags(one: Manifest, flag: str) -> list[str]:
    arguments = one["args"]
    return [arguments[at + 1] for at, word in enumerate(arguments) if word == flag]


# Buckets and settings


def test_without_buckets_there_is_one_called_as_kvmesh_calls_it() -> None:
    manifests = render({})

    spec = pod(manifests, "Deployment", "kvmesh-router-default")
    assert container(spec, "router")["args"] == ["router", "--bucket", "default"]
    assert RouterSettings().bucket == "default"


def test_what_a_bucket_says_wins_over_the_defaults_and_false_is_said_too() -> None:
    values = {
        "settings": {"kv_events": True, "max-backlog-ms": 2000, "max_body_bytes": 86400000},
        "bucketDefaults": {"replicas": 3, "drainS": 60},
        "buckets": {
            "chat": {"maxUnavailable": None, "settings": {"kv_events": False}},
            "code": None,
        },
    }

    manifests = render(values)

    deployments = named(manifests, "Deployment")
    assert deployments["kvmesh-router-chat"]["spec"]["replicas"] == 3
    spec = pod(manifests, "Deployment", "kvmesh-router-chat")
    assert spec["terminationGracePeriodSeconds"] > 60
    assert variables(container(spec, "router"))["KVMESH_KV_EVENTS"] == "false"
    assert {*named(manifests, "PodDisruptionBudget")} == {
        "kvmesh-router-code",
        "kvmesh-meta-router",
    }
    shared = named(manifests, "ConfigMap")["kvmesh-mesh"]["data"]
    assert shared["KVMESH_MAX_BACKLOG_MS"] == "2000"
    assert shared["KVMESH_MAX_BODY_BYTES"] == "86400000", "no number is written with an exponent"


def test_autoscalers_keep_one_and_let_routers_leave_slowly() -> None:
    values: Values = {
        "bucketDefaults": {"autoscaling": {"enabled": True, "kind": "hpa", "min": 0}},
        "engines": {
            "e": {"model": QWEN, "autoscaling": {"enabled": True, "kind": "hpa", "min": 0}}
        },
    }
    found = named(render(values), "HorizontalPodAutoscaler")
    behaviors = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"]["behavior"]["scaleDown"]
        for one in found.values()
    }

    assert {one["spec"]["minReplicas"] for one in found.values()} == {1}
    assert {one["stabilizationWindowSeconds"] for one in behaviors.values()} == {600, 900}


def test_pods_of_routers_follow_a_changed_setting_and_engines_keep_their_caches() -> None:
    engines = {"vllm": {"model": QWEN}}
    before, after = (
        dict(pods(render({"engines": engines, "settings": {"approx_ttl_s": seconds}})))
        for seconds in (5, 6)
    )

    changed = {name for name, one in before.items() if after.get(name) != one}

    changed = {re.sub(r"-[0-9a-f]{8}$", "", name) for name in changed}
    assert changed == {
        "Deployment/kvmesh-router-default",
        "Deployment/kvmesh-meta-router",
        "Job/kvmesh-streams",
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"settings": {"drain-s": 5}}, "drain-s is set by the chart; use drainS"),
        ({"settings": {"upstream_allow": ["a b"]}}, "values of a list must hold no space"),
        ({"mode": "standalone", "buckets": {"a": {}, "b": {}}}, "maxProperties"),
        ({"buckets": {"Chat": {}}}, "does not match pattern"),
        ({"bucket": {}}, "'bucket' not allowed"),
        ({"engines": {"a": {"bucket": "b"}}}, 'there is no bucket "b", only: default'),
        ({"buckets": {"a": {}, "b": {}}, "engines": {"c": {}}}, "name one of the buckets: a, b"),
        ({"engines": {"a": {}}}, "engines.a.model: name the model"),
        ({"engines": {"a": {"engine": "custom"}}}, "engine custom needs an image"),
        ({"nats": {"mode": "external"}}, "/nats/url"),
        ({"nats": {"mode": "dependency"}}, "nats-server.enabled must be true"),
        ({"nats": {"replicas": 2}}, "/nats/replicas"),
        ({"tokenizer": {"source": "volume"}}, "source volume needs `volume`"),
        ({"tokenizer": {"source": "image"}}, "needs `image`"),
        ({"tokenizer": {"source": "init"}}, "source init needs `init.model`"),
        (
            {"engines": {"a": {"kind": "existing", "existing": {"service": "vllm"}}}}
            | WITHOUT_POLICIES,
            "routers follow a Service with discovery.enabled",
        ),
        (
            {"mode": "standalone", "engines": {"a": {"model": QWEN, "role": "prefill"}}},
            "a Service does not tell roles",
        ),
        (
            {"engines": {"a": {"model": QWEN, "engine": "tensorrt-llm", "role": "decode"}}},
            "no handshake for TensorRT-LLM",
        ),
    ],
)
def test_values_that_cannot_work_are_rejected_with_the_remedy(values: Values, words: str) -> None:
    with pytest.raises(Exception, match=re.escape(words)):
        render(values)


def test_no_service_sets_a_setting() -> None:
    """A Service called kvmesh-http would set KVMESH_HTTP_PORT=tcp://…"""
    engines = {"http": {"kind": "mocker"}, "s": {"kind": "statefulset", "model": QWEN}}
    found = pods(render({"engines": engines, "buckets": {"chat": {"picker": {"replicas": 2}}}}))

    assert [name for name, one in found if one["spec"].get("enableServiceLinks") is not False] == []


# The tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "volume"),
    [
        (
            {"source": "volume", "volume": {"persistentVolumeClaim": {"claimName": "models"}}},
            {"persistentVolumeClaim": {"claimName": "models"}},
        ),
        (
            {"source": "image", "image": "registry/qwen:1"},
            {"image": {"reference": "registry/qwen:1", "pullPolicy": "IfNotPresent"}},
        ),
        ({"source": "configMap", "configMap": "t"}, {"configMap": {"name": "t"}}),
        ({"source": "init"}, {"emptyDir": {"sizeLimit": "256Mi"}}),
    ],
)
def test_a_tokenizer_is_mounted_where_routers_are_told(tokenizer: Values, volume: Manifest) -> None:
    manifests = render(
        {"tokenizer": tokenizer | {"directory": "qwen"}, "engines": {"e": {"model": QWEN}}}
    )

    spec = pod(manifests, "Deployment", "kvmesh-router-default")
    one = container(spec, "router")
    assert variables(one)["KVMESH_TOKENIZER"] == "/models/qwen"
    mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
    assert mounts["tokenizer"] == {"name": "tokenizer", "mountPath": "/models", "readOnly": True}
    [found] = [one for one in spec["volumes"] if one["name"] == "tokenizer"]
    assert found == {"name": "tokenizer"} | volume


class Hub(http.server.BaseHTTPRequestHandler):
    """A model hub that lacks a file, and fails once."""

    failed = False
    keys: tuple[str | None, ...] = ()

    def do_GET(self) -> None:
        Hub.keys += (self.headers["authorization"],)
        name = self.path.rpartition("/")[2]
        body = f"{self.path}".encode()
        status = 404 if name == "chat_template.jinja" else 200
        if name == "config.json" and not Hub.failed:
            Hub.failed, status = True, 503
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.failed, Hub.keys = False, ()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_init_container_downloads_what_the_model_has(hub: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    tokenizer: Values = {
        "source": "init",
        "directory": "qwen",
    }
    tokenizer |= {"init": {"endpoint": hub, "tokenSecret": {"name": "hub"}}}
    manifests = render({"tokenizer": tokenizer, "engines": {"e": {"model": QWEN}}})
    [init] = pod(manifests, "Deployment", "kvmesh-router-default")["initContainers"]
    script = init["command"][2].replace("/run/secrets/kvmesh-hub/token", str(token))
    # The second attempt comes at once here, not after a second.
    script = script.replace("time.sleep(2**attempt)", "time.sleep(0)")
    assert str(token) in script

    arguments = [one.replace("/models", str(tmp_path / "models")) for one in init["args"]]
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    found = {one.name: one.read_text() for one in (tmp_path / "models/qwen").iterdir()}
    assert found["tokenizer.json"] == f"/{QWEN}/resolve/main/tokenizer.json"
    assert "config.json" in found, "a hub that is overloaded is asked again"
    assert "chat_template.jinja" not in found
    assert "chat_template.jinja absent" in done.stdout
    assert {*Hub.keys} == {"Bearer secret"}


def test_the_init_container_fails_where_there_is_no_such_model(hub: str, tmp_path: Path) -> None:
    command = [sys.executable, str(CHART / "files/fetch_tokenizer.py"), hub, str(tmp_path)]

    done = subprocess.run(
        [*command, "chat_template.jinja"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "the model has no such file" in done.stderr


# Engines


def test_every_engine_publishes_its_events_where_its_sidecar_reads_them() -> None:
    engines = {
        "v": {"model": QWEN, "blockSize": 32},
        "s": {"model": QWEN, "engine": "sglang"},
        "t": {"model": QWEN, "engine": "tensorrt-llm"},
        "m": {"kind": "mocker"},
    }
    manifests = render({"engines": engines})
    of = {name: pod(manifests, "Deployment", f"kvmesh-{name}") for name in engines}

    vllm = container(of["v"], "vllm")
    events = json.loads(vllm["args"][vllm["args"].index("--kv-events-config") + 1])
    assert (events["endpoint"], events["replay_endpoint"]) == ("tcp://*:5557", "tcp://*:5657")
    assert events["enable_kv_cache_events"]
    assert "--block-size=32" in vllm["args"]
    reported = variables(container(of["v"], "kvmesh-worker"))
    assert reported["KVMESH_KV_EVENTS_ENDPOINT"] == "tcp://127.0.0.1:5557"
    assert reported["KVMESH_KV_CACHE_BLOCK_SIZE"] == "32"
    assert reported["KVMESH_HTTP_PORT"] == "9400"
    assert "--page-size=16" in container(of["s"], "sglang")["args"]
    assert "KVMESH_KV_EVENTS_ENDPOINT" not in variables(container(of["s"], "kvmesh-worker"))
    [options] = read_all(named(manifests, "ConfigMap")["kvmesh-t"]["data"]["trtllm.yaml"])
    assert options["kv_cache_config"]["kv_events_config"]["endpoint"] == "tcp://*:5557"
    reported = variables(container(of["t"], "kvmesh-worker"))
    assert reported["KVMESH_KV_CACHE_BLOCK_SIZE"] == str(
        options["kv_cache_config"]["tokens_per_block"]
    )
    assert flags(container(of["m"], "mocker"), "--kv-events-port") == ["5557"]


def test_without_events_neither_engine_nor_sidecar_has_them() -> None:
    engines = {"v": {"model": QWEN, "kvEvents": {"enabled": False}}}
    spec = pod(render({"engines": engines}), "Deployment", "kvmesh-v")

    assert "--kv-events-config" not in container(spec, "vllm")["args"]
    reported = variables(container(spec, "kvmesh-worker"))
    assert reported["KVMESH_KV_EVENTS"] == "false"
    assert "KVMESH_KV_EVENTS_ENDPOINT" not in reported


def test_prefill_and_decode_engines_share_requests_in_one_way() -> None:
    engines = {
        role: {"model": QWEN, "role": role, "kvTransfer": {"sideChannelPort": 5601}}
        for role in ("prefill", "decode")
    }
    manifests = render({"engines": engines})

    for role in engines:
        spec = pod(manifests, "Deployment", f"kvmesh-{role}")
        vllm = container(spec, "vllm")
        config = json.loads(vllm["args"][vllm["args"].index("--kv-transfer-config") + 1])
        assert config == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        assert variables(vllm)["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5601"
        reported = variables(container(spec, "kvmesh-worker"))
        assert (reported["KVMESH_ROLE"], reported["KVMESH_KV_CONNECTOR"]) == (role, "nixl")


def test_an_engine_over_several_nodes_has_one_sidecar_and_its_nodes_get_no_requests() -> None:
    engines = {
        name: {
            "model": QWEN,
            "kind": "leaderworkerset",
            "multiNode": {"size": 4, "backend": name},
        }
        for name in ("ray", "multiprocessing")
    }
    manifests = named(render({"engines": engines}), "LeaderWorkerSet")

    for name in engines:
        group = manifests[f"kvmesh-{name}"]["spec"]["leaderWorkerTemplate"]
        leader, node = group["leaderTemplate"], group["workerTemplate"]
        assert group["size"] == 4
        assert [one["name"] for one in leader["spec"]["containers"]] == ["vllm", "kvmesh-worker"]
        assert [one["name"] for one in node["spec"]["containers"]] == ["vllm"]
        assert leader["metadata"]["labels"]["kvmesh/engine"] == "true"
        assert "kvmesh/engine" not in node["metadata"]["labels"]
        command = container(node["spec"], "vllm")["command"]
        arguments = container(node["spec"], "vllm").get("args", [])
        assert ("--headless" in arguments) == (name == "multiprocessing")
        assert ("ray start" in " ".join(command)) == (name == "ray")


# Routers that follow engines themselves


def test_a_standalone_router_is_given_engines_as_it_reads_them() -> None:
    values = {
        "mode": "standalone",
        "buckets": {"chat": {"workers": ["a=http://10.0.0.1:8000,zmq=off"]}},
        "engines": {
            "vllm": {"model": QWEN, "replicas": 2},
            "prefill": {"model": QWEN, "kind": "statefulset", "replicas": 2, "role": "prefill"},
            "old": {
                "kind": "existing",
                "existing": {"statefulSet": {"name": "old", "service": "olds", "replicas": 1}},
            },
            "other": {"kind": "existing", "existing": {"service": "team/vllm"}},
        },
        "discovery": {"kubernetes": [{"service": "more", "port": "http"}]},
    } | WITHOUT_POLICIES

    manifests = render(values)

    spec = pod(manifests, "Deployment", "kvmesh-router-chat")
    one = container(spec, "router")
    workers = {str(worker.worker): worker for worker in parse_workers(flags(one, "--worker"))}
    assert {*workers} == {"a", "kvmesh-prefill-0", "kvmesh-prefill-1", "old-0"}
    assert workers["kvmesh-prefill-1"].url == "http://kvmesh-prefill-1.kvmesh-prefill:8000"
    assert workers["kvmesh-prefill-1"].role == "prefill"
    assert workers["old-0"].zmq == "tcp://old-0.olds:5557"
    sources = flags(one, "--discover")
    assert sources == [
        "kubernetes://team/vllm:8000",
        "kubernetes://kvmesh/kvmesh-vllm:8000",
        "kubernetes://kvmesh/more:http",
    ]
    assert all(isinstance(parse_source(source), KubernetesSource) for source in sources)
    assert spec["automountServiceAccountToken"]
    granted = {one["metadata"]["namespace"] for one in manifests if one["kind"] == "Role"}
    assert granted == {"kvmesh", "team"}
    for role in (one for one in manifests if one["kind"] == "Role"):
        [rule] = role["rules"]
        assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["list"])
    assert not [name for name, _ in pods(manifests) if "nats" in name or "meta" in name]
    assert "kvmesh-worker" not in json.dumps(manifests)
    assert named(manifests, "Service")["kvmesh"]["spec"]["selector"]["kvmesh/bucket"] == "chat"


def test_each_existing_engine_gets_one_sidecar_elsewhere() -> None:
    existing = {"statefulSet": {"name": "big", "replicas": 2}}
    engines = {"big": {"kind": "existing", "existing": existing}}
    manifests = render({"engines": engines} | WITHOUT_POLICIES)

    for number in range(2):
        spec = pod(manifests, "Deployment", f"kvmesh-sidecar-big-{number}")
        reported = variables(container(spec, "kvmesh-worker"))
        assert reported["KVMESH_ENGINE_URL"] == f"http://big-{number}.big:8000"
        assert reported["KVMESH_KV_EVENTS_ENDPOINT"] == f"tcp://big-{number}.big:5557"
    strategy = named(manifests, "Deployment")["kvmesh-sidecar-big-0"]["spec"]["strategy"]
    assert strategy == {"type": "Recreate"}, "two would speak for one engine"


# NATS


def test_servers_are_probed_by_their_full_health_page_and_not_killed_for_it() -> None:
    manifests = render({"nats": {"replicas": 3}})
    nats = container(pod(manifests, "StatefulSet", "kvmesh-nats"), "nats")

    for probe in ("startupProbe", "readinessProbe"):
        assert nats[probe]["httpGet"]["path"] == "/healthz"
    assert nats["livenessProbe"]["httpGet"]["path"] == "/healthz?js-enabled-only=true"
    shared = named(manifests, "ConfigMap")["kvmesh-mesh"]["data"]
    assert shared["KVMESH_STREAM_REPLICAS"] == "3"
    assert shared["KVMESH_NATS_URL"].count("kvmesh-nats-peers:4222") == 3
    assert "kvmesh-nats" in named(manifests, "PodDisruptionBudget")


@pytest.mark.parametrize("servers", [1, 3])
def test_nats_takes_the_configuration_without_logins(servers: int, tmp_path: Path) -> None:
    program = shutil.which("nats-server")
    if program is None:
        pytest.skip("no nats-server on this machine")
    manifests = render({"nats": {"replicas": servers, "auth": {"enabled": False}}})
    file = tmp_path / "nats.conf"
    file.write_text(named(manifests, "ConfigMap")["kvmesh-nats"]["data"]["nats.conf"])

    done = subprocess.run(
        [program, "-t", "-c", file, "--name", "a"], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert ("cluster" in file.read_text()) == (servers == 3)


def test_the_nats_chart_serves_as_the_journal() -> None:
    manifests = render({"nats": {"mode": "dependency"}, "nats-server": {"enabled": True}})

    template = named(manifests, "StatefulSet")["kvmesh-nats"]["spec"]["template"]
    service = named(manifests, "Service")["kvmesh-nats-headless"]["metadata"]["name"]
    shared = named(manifests, "ConfigMap")["kvmesh-mesh"]["data"]
    assert shared["KVMESH_NATS_URL"].split(",")[2] == f"nats://kvmesh-nats-2.{service}:4222"
    assert shared["KVMESH_STREAM_REPLICAS"] == "3"
    mounts = {one["name"]: one for one in container(template["spec"], "nats")["volumeMounts"]}
    volumes = {one["name"]: one for one in template["spec"]["volumes"]}
    config = named(manifests, "ConfigMap")["kvmesh-nats-config"]["data"]["nats.conf"]
    assert "include ../nats-accounts/accounts.conf;" in config
    assert mounts["accounts"]["mountPath"] == "/etc/nats-accounts"
    assert volumes["accounts"]["secret"] == {"secretName": "kvmesh-nats-config"}
    policy = named(manifests, "NetworkPolicy")["kvmesh-nats"]["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= template["metadata"]["labels"].items()


def test_the_job_that_makes_streams_is_another_one_when_it_does_something_else() -> None:
    sets: list[Values] = [
        {},
        {"buckets": {"chat": {}}},
        {"nats": {"streams": {"maxBytes": 2**31}}},
    ]
    names = [{*named(render(values), "Job")}.pop() for values in sets]
    hook = named(render({"nats": {"streams": {"job": {"hook": True}}}}), "Job")["kvmesh-streams"]

    assert len({*names}) == 3
    assert hook["metadata"]["annotations"]["helm.sh/hook"].startswith("post-install")


# Logins of browsers


def sessions(values: Values) -> dict[str, tuple[str, str]]:
    """Return (Secret, path) of what seals logins, by the pods that have it."""
    found = {}
    for name, template in pods(render(values)):
        spec = template["spec"]
        held = {one["name"]: one.get("value") for one in spec["containers"][0].get("env", ())}
        path = held.get("KVMESH_SESSION_SECRET_FILE")
        if path is not None:
            [mount] = [
                one
                for one in spec["containers"][0]["volumeMounts"]
                if path.startswith(one["mountPath"] + "/")
            ]
            [volume] = [one for one in spec["volumes"] if one["name"] == mount["name"]]
            [item] = volume["secret"]["items"]
            assert path == f"{mount['mountPath']}/{item['path']}"
            assert item["key"] == item["path"]
            found[name] = (volume["secret"]["secretName"], item["key"])
    return found


def hash_keys(values: Values) -> set[tuple[str, str, str]]:
    """Return (container, Secret, key) of each file that --hash-secret-file names."""
    found = set()
    for _, template in pods(render(WITHOUT_POLICIES | values)):
        spec = template["spec"]
        for one in containers(template):
            path = variables(one).get("KVMESH_HASH_SECRET_FILE")
            if path is None:
                continue
            folder, _, name = path.rpartition("/")
            mounts = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
            (secret,) = [v["secret"] for v in spec["volumes"] if v["name"] == mounts[folder]]
            keys = {item["path"]: item["key"] for item in secret.get("items", ())}
            found.add((one["name"], secret["secretName"], keys[name] if keys else name))
    return found


def test_routers_pickers_and_sidecars_of_a_bucket_hash_by_its_secret() -> None:
    mesh: Values = {
        "buckets": {"chat": {"picker": {"replicas": 2}}, "code": {}},
        "engines": {
            "a": {"kind": "mocker", "bucket": "chat"},
            "b": {"kind": "mocker", "bucket": "code"},
        },
    }
    own = {"auth": {"hashSecret": {"existingSecret": "mine", "key": "k"}}}
    off = {"auth": {"hashSecret": {"enabled": False}}}
    alone: Values = {"mode": "standalone", "buckets": {"chat": {"workers": ["http://e:8000"]}}}

    assert hash_keys(mesh) == {
        ("router", "kvmesh-nats-router-chat", "hash.secret"),
        ("picker", "kvmesh-nats-router-chat", "hash.secret"),
        ("router", "kvmesh-nats-router-code", "hash.secret"),
        ("kvmesh-worker", "kvmesh-nats-worker", "chat.hash.secret"),
        ("kvmesh-worker", "kvmesh-nats-worker", "code.hash.secret"),
    }
    of_routers = {(name, "mine", "k") for name in ("router", "picker", "kvmesh-worker")}
    assert hash_keys(mesh | own) == of_routers
    assert hash_keys(mesh | off) == set()
    assert hash_keys(mesh | {"nats": {"auth": {"enabled": False}}}) == set()
    assert hash_keys(alone) == set()


@pytest.mark.parametrize("mode", ["mesh", "standalone"])
def test_the_dashboard_has_a_port_of_its_own_where_the_values_say_so(mode: str) -> None:
    own = {"dashboardPort": 8055}
    values: Values = {"mode": mode, "metaRouter": own, "buckets": {"chat": own}}
    name = "kvmesh-meta-router"
    if mode == "standalone":
        values["buckets"] = {"chat": own | {"workers": ["http://e:8000"]}}
        name = "kvmesh-router-chat"

    manifests = render(values)

    (front,) = pod(manifests, "Deployment", name)["containers"]
    assert variables(front)["KVMESH_DASHBOARD_PORT"] == "8055"
    assert {"name": "dashboard", "containerPort": 8055} in front["ports"]
    (port,) = named(manifests, "Service")[f"{name}-dashboard"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (8055, "dashboard")
    (rule, *_) = [
        one
        for one in named(manifests, "NetworkPolicy")[name]["spec"]["ingress"]
        if {"port": 8055} in one["ports"]
    ]
    assert {"port": 8000} in rule["ports"]
    reported = [
        where for where, one in pods(manifests) if "KVMESH_DASHBOARD_PORT" in json.dumps(one)
    ]
    assert reported == [f"Deployment/{name}"]


def test_replicas_of_the_front_door_seal_logins_by_one_secret() -> None:
    keys: Values = {"auth": {"apiKeys": {"existingSecret": "client-keys"}}}
    own: Values = {"session": {"existingSecret": "mine", "key": "seal"}}
    named_one: Values = {"auth": keys["auth"] | own}
    [secret] = named(render(keys), "Secret").values()

    assert sessions(keys) == {"Deployment/kvmesh-meta-router": ("kvmesh-session", "secret")}
    assert secret["metadata"]["name"] == "kvmesh-session"
    assert len(base64.b64decode(secret["data"]["secret"])) == 64
    assert sessions(keys | {"mode": "standalone"}) == {
        "Deployment/kvmesh-router-default": ("kvmesh-session", "secret")
    }
    assert [*named(render(keys | {"mode": "standalone"}), "Secret")] == ["kvmesh-session"]
    assert sessions(named_one) == {"Deployment/kvmesh-meta-router": ("mine", "seal")}
    assert named(render(named_one), "Secret") == {}
    assert sessions({}) == {}
    assert named(render({}), "Secret") == {}


def test_an_upgrade_keeps_the_secret_that_the_cluster_has(tmp_path: Path) -> None:
    """Without a cluster `lookup` finds nothing, so a copy of the chart is told what it finds."""
    copy = shutil.copytree(CHART, tmp_path / "kvmesh")
    template = copy / "templates/edge/session.yaml"
    asked = '(lookup "v1" "Secret" .Release.Namespace $name | default dict)'
    values: Values = {"auth": {"apiKeys": {"existingSecret": "client-keys"}}}
    text = template.read_text()
    assert text.count(asked) == 1
    made = []
    for found in ('"secret" "a2VwdA=="', '"other" "a2VwdA=="'):
        template.write_text(text.replace(asked, f'(dict "data" (dict {found}))'))
        files = chart(copy).render(values, name="kvmesh", namespace="kvmesh")
        [one] = read_all(files["kvmesh/templates/edge/session.yaml"])
        made.append(base64.b64decode(one["data"]["secret"]))

    assert made[0] == b"kept"
    assert len(made[1]) == 64


# What people are told


def test_the_notes_say_what_is_missing() -> None:
    bare = notes({"buckets": {"chat": {}}})
    whole = notes(
        {
            "tokenizer": {"source": "init"},
            "engines": {"e": {"model": QWEN}},
            "nats": {"auth": {"enabled": False}},
        }
    )

    assert "no engines" in bare
    assert "no tokenizer" in bare
    assert "kvmesh-nats-router-chat" in bare
    assert "PREFIX=kvmesh- deploy/k8s/make-secrets.sh ./keys 1 kvmesh chat" in bare
    assert "no engines" not in whole
    assert "no tokenizer" not in whole
    assert "For trials only" in whole


async def test_the_chart_s_own_test_asks_a_front_door() -> None:
    async with (
        mockers(timing_profile="dynamo") as (engine,),
        router([engine.url]) as url,
    ):
        asking = await asyncio.create_subprocess_exec(
            sys.executable,
            CHART / "files/ask_front.py",
            url,
            "",
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asyncio.wait_for(asking.communicate(), 60)

    assert asking.returncode == 0
    assert said.startswith(b"mock answered ")
