"""The examples for autoscalers: what they ask exists, and gives as many engines as are wanted."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvmesh.app.picker.kube_objects import DELETION_COST
from kvmesh.app.views.scaling_figures import SCALING
from tests.integration.chart.rendering import kustomize, named, render
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


@pytest.mark.parametrize("overlay", ["keda", "hpa"])
def test_routers_of_engines_that_are_scaled_mark_their_pods_and_may_do_no_more(
    overlay: str,
) -> None:
    manifests = kustomize(overlay)
    roles = named(manifests, "Role")
    (subject,) = named(manifests, "RoleBinding")["mark-pods"]["subjects"]
    accounts = {}
    for name, one in named(manifests, "Deployment").items():
        pod = one["spec"]["template"]["spec"]
        marks = [each for each in pod["containers"][0]["env"] if each["name"] == "KVMESH_MARK_PODS"]
        if marks or pod.get("automountServiceAccountToken") is not False:
            accounts[name] = (pod["serviceAccountName"], marks[0]["value"])

    assert accounts == {"router-chat": ("mark-pods", "true")}
    assert (subject["name"], subject["namespace"]) == ("mark-pods", "kvmesh")
    assert list(roles) == list(named(manifests, "ServiceAccount")) == ["mark-pods"]
    assert [(one["resources"], one["verbs"]) for one in roles["mark-pods"]["rules"]] == [
        (["pods"], ["list", "patch"])
    ]
    assert {"port": 6443} in named(manifests, "NetworkPolicy")["mark-pods"]["spec"]["egress"][0][
        "ports"
    ]
    engines = named(manifests, "Deployment")["vllm-chat"]["spec"]["template"]["metadata"]
    assert {"kvmesh/engine": "true", "kvmesh/bucket": "chat"}.items() <= engines["labels"].items()


@pytest.mark.parametrize("overlay", ["dev", "prod", "gateway", "sglang"])
def test_nobody_may_change_pods_where_nothing_scales_engines(overlay: str) -> None:
    roles = named(kustomize(overlay), "Role").values()

    assert not any("patch" in rule["verbs"] for one in roles for rule in one["rules"])


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [
        ("Role", "mark-pods", "rules"),
        ("RoleBinding", "mark-pods", "subjects"),
        ("ServiceAccount", "mark-pods", "automountServiceAccountToken"),
        ("ValidatingAdmissionPolicy", "kvmesh-mark-pods", "spec"),
        ("ValidatingAdmissionPolicyBinding", "kvmesh-mark-pods", "spec"),
    ],
)
def test_the_component_grants_what_the_chart_does(kind: str, name: str, part: str) -> None:
    values = yaml.safe_load((DEPLOY / "k8s/base/values.yaml").read_text())
    values |= {"markPods": {"enabled": True}}

    of_chart = named(render(values), kind)[name]

    assert of_chart[part] == named(kustomize("keda"), kind)[name][part]
    assert ("namespace" in of_chart["metadata"]) is not kind.startswith("Validating")


def test_the_admission_policy_names_the_mark_that_routers_make_and_the_pods_they_choose() -> None:
    (policy,) = named(kustomize("keda"), "ValidatingAdmissionPolicy").values()
    (mark,) = [one for one in policy["spec"]["variables"] if one["name"] == "mark"]
    engines, change = (one["expression"] for one in policy["spec"]["validations"])

    assert json.loads(mark["expression"]) == DELETION_COST
    assert 'oldObject.metadata.labels["kvmesh/engine"] == "true"' in engines
    for kept in ("object.spec", "metadata.labels", "finalizers", "ownerReferences"):
        assert kept in change
