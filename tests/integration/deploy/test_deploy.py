"""The manifests and the compose file: what a cluster or Docker would refuse is found here."""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvmesh.app.ops.nats_members import AccountsOptions, plan_members
from kvmesh.app.picker.kube_objects import OBJECTIVES, PODS, POOLS
from kvmesh.app.views.figure_table import TABLES
from kvmesh.cli import COMMANDS
from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings, WorkerSettings
from tests.integration.chart.rendering import kustomize
from tests.integration.deploy.promql import labels_by_series, matched_words
from tests.integration.support.live_router import mockers, router

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus/kvmesh-alerts.yml"
COMPOSE, GATEWAY, SITES = [
    yaml.safe_load((DEPLOY / "compose" / name).read_text())
    for name in ("compose.yaml", "gateway.yaml", "two-sites.yaml")
]
ALL = pytest.mark.parametrize(
    "file", [COMPOSE, GATEWAY, SITES], ids=["compose", "gateway", "sites"]
)
WHOLE = pytest.mark.parametrize("file", [COMPOSE, SITES], ids=["compose", "sites"])
BOARDS = sorted((DEPLOY / "compose/grafana/dashboards").glob("*.json"))
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
TARGET_LABELS = {"bucket", "instance", "job", "process", "le"}
"""Labels of targets, of processes behind one port, and of buckets of histograms."""

ROUTERS = 4
ENGINES = 4


def workloads(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] in {"Deployment", "StatefulSet", "Job"}]


def pods(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in workloads(manifests)]


def settings_names() -> set[str]:
    names: set[str] = set()
    for settings in (RouterSettings, WorkerSettings, PickerSettings):
        for name, field in settings.__dataclass_fields__.items():
            names |= {name} | set(getattr(field.default_factory, "__dataclass_fields__", {}))
    return names | set(NatsSettings.__dataclass_fields__)


def test_the_sidecar_leaves_the_engine_container_as_it_is() -> None:
    (written,) = yaml.safe_load_all((DEPLOY / "k8s/overlays/prod/vllm-chat.yaml").read_text())
    (built,) = (one for one in kustomize("prod") if one["metadata"]["name"] == "vllm-chat")

    engine = written["spec"]["template"]["spec"]["containers"][0]
    containers = {one["name"]: one for one in built["spec"]["template"]["spec"]["containers"]}

    assert containers["vllm"] == engine
    assert containers["kvmesh-worker"]["args"] == ["worker"]


async def test_an_engine_is_stopped_only_when_its_last_stream_is_over() -> None:
    """The manifest's own preStop against a pretend vLLM, at its port instead of 8000."""
    [engine] = [
        container
        for pod in pods(kustomize("prod"))
        for container in pod["spec"]["containers"]
        if container["name"] == "vllm"
    ]
    command = engine["lifecycle"]["preStop"]["exec"]["command"]
    async with (
        mockers(timing_profile="dynamo") as (mocker,),
        httpx.AsyncClient(timeout=60.0) as http,
    ):
        script = command[-1].replace(":8000/", f":{mocker.url.rpartition(':')[2]}/")
        assert mocker.url in script
        body = {"model": "mock", "prompt": "A long story.", "max_tokens": 4000, "ignore_eos": True}
        url = f"{mocker.url}/v1/completions"
        async with http.stream("POST", url, json=body | {"stream": True}) as answer:
            chunks = answer.aiter_raw()
            await anext(chunks)
            waiting = await asyncio.create_subprocess_exec(sys.executable, *command[1:-1], script)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting.wait()), 5.0)
            assert waiting.returncode is None
        assert await asyncio.wait_for(waiting.wait(), 60.0) == 0


def test_production_has_three_servers_with_three_copies_and_routers_that_may_be_moved() -> None:
    manifests = kustomize("prod")
    named = {(one["kind"], one["metadata"]["name"].split("-8")[0]): one for one in manifests}

    (mesh,) = (one for one in manifests if one["kind"] == "ConfigMap")
    assert named["StatefulSet", "nats"]["spec"]["replicas"] == 3
    assert mesh["data"]["KVMESH_STREAM_REPLICAS"] == "3"
    for bucket in ("chat", "code"):
        router = named["Deployment", f"router-{bucket}"]["spec"]["template"]["spec"]
        probes = router["containers"][0]
        assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert probes["livenessProbe"]["httpGet"]["path"] == "/health"
        assert ("HorizontalPodAutoscaler", f"router-{bucket}") in named
        assert ("PodDisruptionBudget", f"router-{bucket}") in named
        drain = next(one for one in probes["env"] if one["name"] == "KVMESH_DRAIN_S")
        assert router["terminationGracePeriodSeconds"] > float(drain["value"])


def test_a_gateway_finds_the_pickers_and_the_engines_of_its_pool() -> None:
    manifests = kustomize("gateway")
    named = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
    pool, route = named["InferencePool", "chat"]["spec"], named["HTTPRoute", "chat"]["spec"]
    service = named["Service", pool["endpointPickerRef"]["name"]]["spec"]
    picker = named["Deployment", "picker-chat"]["spec"]
    pod, container = picker["template"], picker["template"]["spec"]["containers"][0]
    settings = {one["name"]: one.get("value") for one in container["env"]}

    (rule,) = route["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "chat"}
    ]
    asked = {one["name"]: one["port"] for one in service["ports"]}
    assert asked["grpc"] == pool["endpointPickerRef"]["port"]["number"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert settings["KVMESH_INFERENCE_POOL"] == "$(POD_NAMESPACE)/chat"
    wanted = pool["selector"]["matchLabels"].items()
    members = [
        one
        for one in workloads(manifests)
        if wanted <= one["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert [one["metadata"]["name"] for one in members] == ["vllm-chat"]
    containers = {one["name"]: one for one in members[0]["spec"]["template"]["spec"]["containers"]}
    reported = {one["name"]: one.get("value") for one in containers["kvmesh-worker"]["env"]}
    assert reported["KVMESH_ENGINE_URL"] == f"http://$(POD_IP):{pool['targetPorts'][0]['number']}"
    patience = pod["spec"]["terminationGracePeriodSeconds"]
    assert patience > float(settings["KVMESH_NOTICE_S"]) + float(settings["KVMESH_DRAIN_S"])


def test_pickers_may_read_what_they_watch_and_nothing_else() -> None:
    manifests = kustomize("gateway")
    named = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
    granted = {
        (group, kind): set(rule["verbs"])
        for rule in named["Role", "kvmesh-picker"]["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    binding = named["RoleBinding", "kvmesh-picker"]
    pod = named["Deployment", "picker-chat"]["spec"]["template"]["spec"]

    watched = {(one.group, one.plural) for one in (PODS, POOLS, *OBJECTIVES)}
    assert granted == {kind: {"get", "list", "watch"} for kind in watched}
    assert binding["roleRef"]["name"] == "kvmesh-picker"
    (subject,) = binding["subjects"]
    assert subject["name"] == pod["serviceAccountName"]
    assert subject["namespace"] == binding["metadata"]["namespace"]
    assert pod["automountServiceAccountToken"]
    for one in workloads(manifests):
        others = one["spec"]["template"]["spec"]
        assert others is pod or others.get("automountServiceAccountToken") is False


def test_the_certificate_script_makes_the_secret_of_the_pickers(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None or shutil.which("openssl") is None:
        pytest.skip("no kubectl or no openssl on this machine")
    script = [str(DEPLOY / "k8s/make-picker-tls.sh"), str(tmp_path / "keys"), "kvmesh", "chat"]

    first, again = (subprocess.run(script, capture_output=True, check=True) for _ in range(2))

    assert first.stdout == again.stdout
    (secret,) = yaml.safe_load_all(first.stdout)
    named = {(one["kind"], one["metadata"]["name"]): one for one in kustomize("gateway")}
    volumes = named["Deployment", "picker-chat"]["spec"]["template"]["spec"]["volumes"]
    assert secret["metadata"]["name"] in [
        one["secret"]["secretName"] for one in volumes if "secret" in one
    ]
    for name, value in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(value))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def test_the_secrets_script_makes_every_secret(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    script = DEPLOY / "k8s/make-secrets.sh"
    launcher = tmp_path / "kvmesh"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvmesh "$@"\n')
    launcher.chmod(0o755)

    made = subprocess.run(
        [script, tmp_path / "keys", "3", "kvmesh", "chat", "code"],
        env={"KVMESH": str(launcher), "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
    )

    assert made.returncode == 0, made.stderr.decode()
    secrets = {one["metadata"]["name"]: one for one in yaml.safe_load_all(made.stdout)}
    wanted = {
        volume["secret"]["secretName"]
        for pod in pods(kustomize("prod"))
        for volume in pod["spec"].get("volumes", [])
        if "secret" in volume
    }
    assert wanted <= set(secrets)
    hashes = {"chat.hash.secret", "code.hash.secret"}
    workers = secrets["kvmesh-nats-worker"]["data"]
    assert set(workers) == {"chat.nk", "code.nk", "trust.json"} | hashes
    assert len({workers[name] for name in hashes}) == 2
    for bucket in ("chat", "code"):
        routers = secrets[f"kvmesh-nats-router-{bucket}"]["data"]
        assert routers["hash.secret"] == workers[f"{bucket}.hash.secret"]
    clients = {name: one["data"] for name, one in secrets.items() if name != "kvmesh-nats-config"}
    assert len({data["trust.json"] for data in clients.values()}) == 1
    admins = {"admin.nk", "admin.chat.nk", "admin.code.nk", "trust.json"}
    assert set(secrets["kvmesh-nats-admin"]["data"]) == admins
    config = secrets["kvmesh-nats-config"]["data"]
    assert "cluster.conf" in config
    assert b"http: 0.0.0.0:8222" in base64.b64decode(config["nats.conf"]), "kubelets probe the pod"


def test_compose_has_a_whole_mesh_and_a_key_for_each_process() -> None:
    services = COMPOSE["services"]
    commands = [one["command"] for one in services.values() if "kvmesh" in str(one.get("image"))]
    keys = {
        Path(volume.split(":")[0]).name
        for one in services.values()
        for volume in one.get("volumes", [])
        if "/seeds/" in volume
    }
    numbered = [(bucket, number) for bucket in ("chat", "code") for number in (0, 1)]
    made = plan_members(
        AccountsOptions(
            worker=tuple(f"{bucket}/worker-{number}" for bucket, number in numbered),
            router=tuple(f"{bucket}/{bucket}-{number}" for bucket, number in numbered),
        )
    )

    assert all(command[0] in COMMANDS for command in commands)
    assert [command[0] for command in commands].count("router") == ROUTERS
    assert [command[0] for command in commands].count("mocker") == ENGINES
    assert len([name for name in services if re.fullmatch(r"nats-\d", name)]) == 3
    hashes = {"hash.chat.secret", "hash.code.secret"}
    assert keys == {member.file_name for member in made} | hashes


def test_compose_gives_all_of_a_bucket_its_secret_of_hashes_and_nobody_else() -> None:
    for name, one in COMPOSE["services"].items():
        held = [text for text in one.get("volumes", []) if "hash." in text]
        match = re.fullmatch(r"(router|worker)-(chat|code)-\d", name)
        if match is None:
            assert not held, name
            continue
        assert held == [f"./accounts/seeds/hash.{match[2]}.secret:/run/secrets/hash.secret:ro"]
        path = one["environment"]["KVMESH_HASH_SECRET_FILE"]
        assert held[0].endswith(f":{path}:ro")


@ALL
def test_compose_confines_every_container(file: dict[str, Any]) -> None:
    for name, service in file["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name not in {"grafana", "envoy"}:
            assert service["user"].startswith("655"), name
        assert service.get("read_only") or name == "grafana", name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


@WHOLE
def test_compose_bounds_every_container_and_its_log(file: dict[str, Any]) -> None:
    for name, service in file["services"].items():
        assert {"mem_limit", "cpus", "pids_limit"} <= set(service), name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
        # Streams may end in the 30 s of --drain-s before Docker kills.
        assert service.get("stop_grace_period", "35s") == "35s", name


@WHOLE
def test_compose_checks_every_process_of_ours_that_goes_on(file: dict[str, Any]) -> None:
    for name, service in file["services"].items():
        if "KVMESH_IMAGE" in service["image"] and name != "nats-streams":
            assert service["healthcheck"]["test"][:3] == ["CMD", "kvmesh", "health"], name


def test_prometheus_reads_every_process_of_compose() -> None:
    made = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    targets = {
        target
        for job in made["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    ports = {"router": 8000, "meta": 8000, "engine": 8000, "worker": 9400, "nats-exporter": 7777}
    there = {
        f"{name}:{port}"
        for name in COMPOSE["services"]
        for kind, port in ports.items()
        if re.fullmatch(rf"{kind}(-[a-z]+)*-\d", name)
    }

    assert targets == there


def test_haproxy_knows_every_meta_router() -> None:
    config = DEPLOY / "compose/haproxy.cfg"
    servers = re.findall(r"^    server (\S+) (\S+):8000$", config.read_text(), re.MULTILINE)

    metas = {name for name in COMPOSE["services"] if name.startswith("meta-router")}
    assert {name for pair in servers for name in pair} == metas
    assert len(metas) == 2
    shown = re.findall(r"^    server (\S+) (\S+):8002$", config.read_text(), re.MULTILINE)
    own = yaml.safe_load((DEPLOY / "compose/dashboard-port.yaml").read_text())["services"]
    assert {name for pair in shown for name in pair} == metas == own.keys() - {"edge"}
    assert {own[name]["environment"]["KVMESH_DASHBOARD_PORT"] for name in metas} == {"8002"}
    assert own["edge"]["ports"][0].endswith(":8002")


def test_haproxy_sections_have_one_name_each_and_lead_to_each_other() -> None:
    config = (DEPLOY / "compose/haproxy.cfg").read_text()
    sections = re.findall(r"^(\w+(?: \S+)?)$", config, re.MULTILINE)
    named = re.findall(
        r"^frontend (\S+)\n    bind \S+\n    default_backend (\S+)\n", config, re.MULTILINE
    )

    assert len(sections) == len(set(sections))
    assert named == [("front-door", "meta-routers"), ("dashboard", "dashboards")]
    assert {f"backend {backend}" for _, backend in named} <= set(sections)


def test_haproxy_accepts_the_file() -> None:
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no haproxy on this machine")
    argv = [program, "-c", "-f", str(DEPLOY / "compose/haproxy.cfg")]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@ALL
def test_compose_variables_are_settings(file: dict[str, Any]) -> None:
    known = {f"KVMESH_{name.upper()}" for name in settings_names()}
    for name, service in file["services"].items():
        if "KVMESH_IMAGE" in service["image"]:
            assert set(service.get("environment", {})) <= known, name


def test_sites_of_compose_have_no_network_in_common_but_for_nats_and_meta_routers() -> None:
    for name, service in SITES["services"].items():
        kind, _, site = name.rpartition("-")
        wide = ["wan"] if kind in {"nats", "meta-router"} else []
        assert service["networks"] == [site, *wide], name
    eu, us = (
        (DEPLOY / f"compose/site-{one}.conf").read_text().partition("listen:")[2].split("leafnodes")
        for one in ("eu", "us")
    )
    swapped = re.sub(r"\b(eu|us)\b", lambda found: {"eu": "us", "us": "eu"}[found[0]], eu[0])
    assert swapped == us[0]


@pytest.mark.parametrize("file", ["compose.yaml", "gateway.yaml", "two-sites.yaml"])
def test_docker_compose_accepts_the_file(file: str) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on this machine")

    check = subprocess.run(
        [program, "--file", DEPLOY / "compose" / file, "config", "--quiet"],
        capture_output=True,
        check=False,
        env=os.environ | {"MESH_PASSWORD": "a", "LEAF_PASSWORD": "b"},
    )

    assert check.returncode == 0, check.stderr.decode()


def test_dashboards_alarms_and_guide_ask_only_for_what_exists() -> None:
    """Each metric, and each label that a matcher or a grouping names."""
    known = known_series()
    lacking = {
        (series, label)
        for expression in (*dashboard_expressions(), *alarms().values(), *guide_expressions())
        for series, labels in labels_by_series(expression).items()
        if series.startswith("kvmesh_")
        for label in (labels - TARGET_LABELS - known.get(series, set()) or {""})
        if label or series not in known
    }

    assert lacking == set()


async def test_engines_have_what_dashboards_ask_of_them_and_routers_the_words() -> None:
    expressions = [*dashboard_expressions(), *alarms().values(), *guide_expressions()]
    engine, replica = await exported()
    of_engines = {
        series
        for expression in expressions
        for series in labels_by_series(expression)
        if series.startswith("vllm:")
    }
    words = set().union(*map(matched_words, expressions))
    named = {(series, label) for series, label, _ in replica}

    assert of_engines <= {series for series, _, _ in engine}
    assert {one for one in words if one[:2] in named} <= replica


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    queries = [one.replace("$__rate_interval", "1m") for one in dashboard_expressions()]
    queries += guide_expressions()
    rules = [{"record": f"q{at}", "expr": one} for at, one in enumerate(queries)]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "guide", "rules": rules}]}))

    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, check=False)

    assert len(rules) > 10
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def guide_expressions() -> list[str]:
    """Return the queries of "Hours and days" in docs/operate/observe.md."""
    page = (DEPLOY.parent / "docs/operate/observe.md").read_text()
    table = page.partition("## Hours and days")[2].partition("\n\n`bucket`")[0]
    return [one for one in re.findall(r"`([^`]+)`", table) if "kvmesh_" in one]


def dashboard_expressions() -> list[str]:
    panels = [panel for file in BOARDS for panel in json.loads(file.read_text())["panels"]]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def alarms() -> dict[str, str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


@pytest.mark.parametrize("file", BOARDS, ids=[file.stem for file in BOARDS])
def test_dashboard_panels_do_not_overlap_and_ids_are_their_own(file: Path) -> None:
    board = json.loads(file.read_text())
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & mine, panel["title"]
        assert max(x for x, _ in mine) < 24, panel["title"]
        cells |= mine
    identities = [panel["id"] for panel in board["panels"]]
    assert len(set(identities)) == len(identities)
    assert {*board["tags"]} == {"kvmesh"}
    assert board["uid"] in {"kvmesh", f"kvmesh-{file.stem}"}
    sources = {one["datasource"]["uid"] for one in board["panels"] if "datasource" in one}
    assert sources == {"prometheus"}


def test_the_alarms_of_the_cluster_are_those_of_the_file_and_the_runbook_explains_each() -> None:
    (rule,) = (one for one in kustomize("prod") if one["kind"] == "PrometheusRule")
    runbook = (DEPLOY.parent / "docs/operate/runbook.md").read_text()

    assert rule["spec"]["groups"] == yaml.safe_load(ALERTS.read_text())["groups"]
    assert [name for name in alarms() if f"`{name}`" not in runbook] == []


def test_alarms_are_raised_by_what_is_wrong_and_by_nothing_else() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    tests = ALERTS.with_suffix(".test.yml")
    for verb, file in (("check", ALERTS), ("test", tests)):
        done = subprocess.run([promtool, verb, "rules", file], capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


async def exported() -> list[set[tuple[str, str, str]]]:
    """Return the samples of a pretend engine and of a router: name, label, and the label's word."""
    body = {"model": "mock", "max_tokens": 2, "prompt": "Once upon a time. " * 20}
    async with (
        mockers() as (engine,),
        router([engine.url]) as door,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await client.post(f"{door}/v1/completions", json=body)
        pages = [(await client.get(f"{url}/metrics")).text for url in (engine.url, door)]
    return [
        {
            (one.name, label, word)
            for family in text_string_to_metric_families(page)
            for one in family.samples
            for label, word in {"": "", **one.labels}.items()
        }
        for page in pages
    ]


def known_series() -> dict[str, set[str]]:
    """Return the labels of every series of ours."""
    return {
        f"{one.metric}{suffix}": {*table.labels, *one.labels}
        for table in TABLES
        for one in table.figures
        for suffix in SUFFIXES.get(one.kind, ("",))
    }
