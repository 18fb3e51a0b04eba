"""Every example of the chart: what Helm, an API server, kvmesh's command line or a kubelet would
refuse is found here, without a cluster.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvmesh.cli import COMMANDS
from tests.integration.chart.command_lines import parse_line, read_line
from tests.integration.chart.rendering import (
    CHART,
    EXAMPLES,
    HELM,
    NAMESPACE,
    OVERLAYS,
    Manifest,
    changed,
    containers,
    example,
    is_ours,
    kustomize,
    named,
    pods,
    render,
    templates,
)
from tests.integration.chart.validation import VERSIONS, refusals

pytestmark = pytest.mark.integration

LEAST: dict[str, str] = {"air-gapped": "1.33"}
"""Examples that need more than the oldest version: image volumes are beta in 1.33."""
DEPLOY = Path(__file__).parents[3] / "deploy"
SECRETS = {
    "production": {"hub-token"},
    "secure": {"client-keys", "admin-token", "hash-secret", "tenant-secret"},
    "external-nats": {"nats-ca"},
}
"""Secrets that an example's own words name; the others are the scripts' or cert-manager's."""


@pytest.fixture(params=EXAMPLES)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(example(request.param))


@pytest.fixture(params=[*EXAMPLES, *(f"overlay {one}" for one in OVERLAYS)])
def deployed(request: pytest.FixtureRequest) -> list[Manifest]:
    """Manifests of the chart, or of an overlay of deploy/k8s."""
    kind, _, name = request.param.rpartition(" ")
    return kustomize(name) if kind else render(example(name))


def is_of_subchart(one: Manifest) -> bool:
    return not one["metadata"]["labels"]["helm.sh/chart"].startswith("kvmesh-")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_there_are_examples_for_what_the_chart_offers() -> None:
    assert len(EXAMPLES) >= 12


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lints_an_example_without_a_warning(name: str) -> None:
    helm = pytest.importorskip("helm_python")

    report = helm.lint(CHART, example(name), strict=True, namespace=NAMESPACE, quiet=True)

    wrong = [one for one in report["messages"] if one["severity"] > 1]
    assert wrong == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_strictly_valid(version: str) -> None:
    found = [
        (name, one["kind"], one["metadata"]["name"], line)
        for name in EXAMPLES
        if numbers(version) >= numbers(LEAST.get(name, version))
        for one in render(example(name))
        for line in refusals(one, version)
    ]

    assert found == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_of_an_overlay_is_strictly_valid(overlay: str) -> None:
    assert [line for one in kustomize(overlay) for line in refusals(one, "1.33")] == []


def test_a_misspelt_field_is_found() -> None:
    (router, *_) = named(render(example("quickstart")), "Deployment").values()

    wrong = changed(router, spec__template__spec__containres=[])

    assert [line for line in refusals(wrong, VERSIONS[-1]) if "containres" in line]


def test_the_oldest_version_is_the_charts() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert metadata["kubeVersion"] == f">={VERSIONS[0]}.0-0"


def test_arguments_and_variables_are_read_by_kvmesh(deployed: list[Manifest]) -> None:
    found = 0
    for _, template in pods(deployed):
        for container in filter(is_ours, containers(template)):
            line = read_line(container, deployed)
            assert line.arguments[0] in COMMANDS
            parse_line(line)
            found += 1

    assert found > 0


def test_every_container_of_ours_is_confined_and_every_image_has_a_version(
    deployed: list[Manifest],
) -> None:
    for where, template in pods(deployed):
        for container in containers(template):
            image = container["image"].rpartition("/")[2]
            assert ":" in image, where
            assert not image.endswith(":latest"), where
            if "kvmesh" in image or image.startswith(("nats:", "prometheus-nats")):
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"], where
                assert context["allowPrivilegeEscalation"] is False
                assert context["capabilities"] == {"drop": ["ALL"]}
                runner = context | template["spec"].get("securityContext", {})
                assert runner["runAsNonRoot"], where
                if "kvmesh" in image:
                    assert container["resources"]["limits"]["memory"], where


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_reference_leads_somewhere(name: str) -> None:
    manifests = render(example(name))
    maps, accounts = named(manifests, "ConfigMap"), named(manifests, "ServiceAccount")
    written = {one["spec"]["secretName"] for one in named(manifests, "Certificate").values()}
    written |= named(manifests, "Secret").keys()
    scripts = (DEPLOY / "k8s/make-secrets.sh").read_text()
    scripts += (DEPLOY / "k8s/make-picker-tls.sh").read_text()
    made = set(re.findall(r"secret (?:tls )?\"?(kvmesh-(?:nats|picker-tls)-[a-z-]*)", scripts))
    external = SECRETS.get(name, set()) | {"tokenizer-chat"}
    claims = {
        volume["metadata"]["name"]
        for one in named(manifests, "StatefulSet").values()
        for volume in one["spec"].get("volumeClaimTemplates", ())
    }
    for where, template in pods(manifests):
        spec = template["spec"]
        volumes = {one["name"]: one for one in spec.get("volumes", ())}
        for volume in volumes.values():
            if "secret" in volume:
                secret = volume["secret"]["secretName"]
                known = secret in written | external or any(map(secret.startswith, made))
                assert known, (where, secret)
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps.keys() | external, where
        for container in containers(template):
            mounted = {one["name"] for one in container.get("volumeMounts", ())}
            assert mounted <= volumes.keys() | claims, where
        assert volumes.keys() <= {
            one["name"] for each in containers(template) for one in each.get("volumeMounts", ())
        }, f"{where}: a volume that nobody mounts"
        if "serviceAccountName" in spec:
            assert spec["serviceAccountName"] in accounts, where


def test_every_selector_takes_a_pod(deployed: list[Manifest]) -> None:
    labels = [template["metadata"]["labels"] for _, template in pods(deployed)]
    for one in deployed:
        if one["kind"] not in {"Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"}:
            continue
        spec = one["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        wanted = selector.get("matchLabels", selector).items()
        taken = any(wanted <= known.items() for known in labels)
        foreign = "engines-" in one["metadata"]["name"]
        assert taken or foreign, f"{one['kind']} {one['metadata']['name']}"


def test_ports_that_are_named_are_there(deployed: list[Manifest]) -> None:
    everyone = [
        (template["metadata"]["labels"], port)
        for _, template in pods(deployed)
        for container in containers(template)
        for port in container.get("ports", ())
    ]
    asked: list[tuple[str, dict[str, str], Any]] = [
        (one["metadata"]["name"], one["spec"]["selector"], port["targetPort"])
        for one in deployed
        if one["kind"] == "Service"
        for port in one["spec"]["ports"]
    ]
    asked += [
        (one["metadata"]["name"], one["spec"]["selector"]["matchLabels"], endpoint["port"])
        for one in deployed
        if one["kind"] == "PodMonitor"
        for endpoint in one["spec"]["podMetricsEndpoints"]
    ]
    for name, selector, port in asked:
        offered = {
            named_port["name"]
            for labels, named_port in everyone
            if selector.items() <= labels.items()
        }
        assert port in offered, (name, port, offered)


def test_probes_ask_ports_that_the_container_has(deployed: list[Manifest]) -> None:
    for where, template in pods(deployed):
        for container in containers(template):
            ports = {one["name"] for one in container.get("ports", ())}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in ports, (where, probe)


def test_streams_may_end_before_a_pod_is_killed(deployed: list[Manifest]) -> None:
    for where, template in pods(deployed):
        for container in filter(is_ours, containers(template)):
            settings = read_line(container, deployed).variables
            if "KVMESH_DRAIN_S" in settings:
                patience = template["spec"]["terminationGracePeriodSeconds"]
                needed = float(settings["KVMESH_DRAIN_S"])
                assert patience > needed + float(settings.get("KVMESH_NOTICE_S", "0")), where


def test_only_who_asks_the_api_server_has_a_token(manifests: list[Manifest]) -> None:
    for where, template in pods(manifests):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] == ("serviceAccountName" in spec), where


def test_a_service_of_an_unlucky_name_sets_no_variable(manifests: list[Manifest]) -> None:
    """Kubernetes makes VLLM_PORT=tcp://… of a Service called vllm, KVMESH_PORT of one kvmesh."""
    for where, template in pods([one for one in manifests if not is_of_subchart(one)]):
        assert template["spec"]["enableServiceLinks"] is False, where


def test_names_and_labels_are_the_releases(manifests: list[Manifest]) -> None:
    for one in manifests:
        assert one["metadata"]["name"].startswith("kvmesh"), one["metadata"]["name"]
        if is_of_subchart(one):
            continue
        of_all = one["kind"].startswith("ValidatingAdmissionPolicy")
        assert one["metadata"].get("namespace") == (None if of_all else NAMESPACE)
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "kvmesh"
        assert labels["app.kubernetes.io/part-of"] == "kvmesh"
        for template in templates(one):
            assert template["metadata"]["labels"]["app.kubernetes.io/part-of"] == "kvmesh"


def test_no_two_objects_have_one_name(deployed: list[Manifest]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in deployed]

    assert len(set(names)) == len(names)


def test_the_cluster_has_the_alarms_and_the_dashboards_of_the_files() -> None:
    manifests = render(example("production"))
    (rule,) = named(manifests, "PrometheusRule").values()
    board = named(manifests, "ConfigMap")["kvmesh-dashboard"]

    alarms = yaml.safe_load((DEPLOY / "prometheus/kvmesh-alerts.yml").read_text())
    assert rule["spec"] == alarms
    files = (DEPLOY / "compose/grafana/dashboards").glob("*.json")
    shown = {name: json.loads(text) for name, text in board["data"].items()}
    assert shown == {file.name: json.loads(file.read_text()) for file in files}
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_a_package_holds_the_files_that_the_chart_links_to(tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python")

    archive = helm.package(CHART, destination=tmp_path)

    held = {one["name"]: one["data"] for one in helm.Chart.load(archive).files}
    assert {"files/kvmesh-alerts.yml", "files/kvmesh.json"} <= held.keys()
    rendered = helm.Chart.load(archive).render(
        example("production"), name="kvmesh", namespace=NAMESPACE
    )
    again = helm.Chart.load(CHART).render(example("production"), name="kvmesh", namespace=NAMESPACE)
    assert rendered == again


def test_examples_say_what_they_are_for() -> None:
    for name in EXAMPLES:
        text = (HELM / f"examples/{name}.yaml").read_text()
        assert text.startswith("# "), name
