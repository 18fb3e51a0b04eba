"""The examples for autoscalers: what they ask exists, and gives as many engines as are wanted."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvmesh.app.views.scaling_figures import SCALING
from tests.integration.chart.rendering import kustomize
from tests.integration.deploy.test_deploy import DEPLOY, known_series
from tests.integration.kube import crds

pytestmark = pytest.mark.integration

RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/adapter-rules.yml").read_text())


def scaled(overlay: str, kind: str) -> dict[str, Any]:
    """Return the object of an overlay that scales engines."""
    found = [
        one
        for one in kustomize(overlay)
        if one["kind"] == kind and one["metadata"]["name"] == "vllm-chat"
    ]
    assert len(found) == 1
    return found[0]


def keda_query() -> str:
    (trigger,) = scaled("keda", "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "1"
    return str(trigger["metadata"]["query"])


def adapter_query() -> str:
    """Return what prometheus-adapter asks for the external metric of the overlay hpa."""
    (rule,) = RULES["externalRules"]
    (metric,) = scaled("hpa", "HorizontalPodAutoscaler")["spec"]["metrics"]
    asked = metric["external"]["metric"]
    assert rule["name"]["as"] == asked["name"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    (series,) = re.findall(r"^\w+", rule["seriesQuery"])
    labels = {"namespace": "kvmesh"} | asked["selector"]["matchLabels"]
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    query: str = rule["metricsQuery"]
    return query.replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers)


@pytest.mark.parametrize("query", [keda_query, adapter_query])
def test_the_query_asks_for_a_metric_and_causes_that_there_are(query: Any) -> None:
    text = query()

    asked = set(re.findall(r"kvmesh_[a-z_]+", text))
    causes = set(re.findall(r'cause!?="(\w+)"', text))

    assert asked
    assert asked <= known_series().keys()
    assert causes == {"held"}
    wanted = {one.metric: one.labels for one in SCALING.figures}
    assert wanted["kvmesh_wanted_workers"] == ("cause",)


SERIES = [
    ("chat", "a", "programs", "5.5x20"),
    ("chat", "b", "programs", "5.4x20"),
    ("chat", "a", "backlog", "2x20"),
    ("chat", "a", "held", "0.5x20"),
    ("chat", "b", "held", "0.25x20"),
    ("code", "c", "held", "70x20"),
]
"""Bucket, replica, cause and values of `kvmesh_wanted_workers`."""


def promtool_test() -> dict[str, Any]:
    labels = '{{namespace="kvmesh",bucket="{}",instance="{}",cause="{}"}}'
    series = [
        {"series": "kvmesh_wanted_workers" + labels.format(*names), "values": values}
        for *names, values in SERIES
    ]
    wanted = {
        "expr": "wanted",
        "eval_time": "4m",
        "exp_samples": [{"labels": "wanted", "value": 6.25}],
    }
    one = {"interval": "15s", "input_series": series, "promql_expr_test": [wanted]}
    return {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [one]}


@pytest.mark.parametrize("query", [keda_query, adapter_query])
def test_replicas_agree_on_what_all_see_and_add_what_each_holds(query: Any, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine: apt-get install prometheus")
    rules = {"groups": [{"name": "g", "rules": [{"record": "wanted", "expr": query()}]}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    (tmp_path / "test.yml").write_text(json.dumps(promtool_test()))

    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, check=False
    )

    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize(
    ("overlay", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")]
)
def test_the_autoscaler_alone_says_how_many_engines_there_are(overlay: str, kind: str) -> None:
    target = scaled(overlay, kind)["spec"]["scaleTargetRef"]
    (engines,) = [
        one
        for one in kustomize(overlay)
        if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
    ]

    assert engines["apiVersion"] == target["apiVersion"]
    assert "replicas" not in engines["spec"]
    assert engines["metadata"]["labels"]["kvmesh/engine"] == "true"


def test_a_scaled_object_with_a_field_that_there_is_not_is_refused() -> None:
    wrong = copy.deepcopy(scaled("keda", "ScaledObject"))  # `kustomize` keeps the other
    wrong["spec"]["triggers"][0]["metadata"] |= {"metricName": "x"}

    assert len(crds.misfits(wrong)) == 1


KUBECTL = """#!/bin/sh
case $1 in
get) printf 'vllm-a 10.0.0.1\\nvllm-b 10.0.0.2\\nother 10.9.9.9\\n' ;;
annotate) echo "$*" >> "$TOLD" ;;
esac
"""
WORKERS = [
    {"bucket": "chat", "url": "http://10.0.0.1:8000", "figures": {"drain_cost_s": 12.5}},
    {"bucket": "chat", "url": "http://10.0.0.2:8000", "figures": {"drain_cost_s": 0.25}},
    {"bucket": "chat", "url": "http://10.0.0.2:8000", "figures": {"drain_cost_s": 1.0}},
    {"bucket": "code", "url": "http://10.9.9.9:8000", "figures": {"drain_cost_s": 1.0}},
    {"bucket": "chat", "url": "http://10.0.0.3:8000", "figures": {}},
]


class Overview(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers["authorization"] == "Bearer of-a-viewer"
        self.send_response(200 if allowed and self.path.startswith("/v1/overview") else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"workers": WORKERS}).encode())


@pytest.fixture
def router() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Overview)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()


def test_pods_are_told_what_losing_each_would_cost(router: str, tmp_path: Path) -> None:
    kubectl, reported = tmp_path / "kubectl", tmp_path / "told"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])

    subprocess.run(
        [DEPLOY / "k8s/mark-drain-costs.sh", "kvmesh", "chat", router],
        env={"PATH": path, "TOLD": str(reported), "KVMESH_API_KEY": "of-a-viewer"},
        check=True,
    )

    costs = [line.split() for line in reported.read_text().splitlines()]
    assert [(line[2], line[-1].partition("=")[2]) for line in costs] == [
        ("vllm-a", "12500"),
        ("vllm-b", "1250"),
    ]
    assert {line[-1].partition("=")[0] for line in costs} == {
        "controller.kubernetes.io/pod-deletion-cost"
    }
