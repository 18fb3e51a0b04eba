"""The chart as Helm renders it, without a cluster: the manifests of value files."""

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

Manifest = dict[str, Any]
Values = dict[str, Any]

HELM: Final = Path(__file__).parents[3] / "deploy/helm"
CHART: Final = HELM / "kvmesh"
EXAMPLES: Final = sorted(path.stem for path in (HELM / "examples").glob("*.yaml"))
OVERLAYS: Final = [
    *("dev", "prod", "gateway", "sglang", "tensorrt-llm", "tensorrt-llm-approximate"),
    *("round-robin", "keda", "hpa"),
]
NAMESPACE: Final = "kvmesh"
RELEASE: Final = "kvmesh"


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # no types
    """Reads YAML and refuses a key that stands twice in a mapping: the last would win."""


def _construct(loader: UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise ValueError(f"{node.start_mark}: {sorted(twice)} stands twice")
    return dict(loader.construct_mapping(node, deep=True))


UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct)


def example(name: str) -> Values:
    """Return the values of an example file."""
    (values,) = read_all((HELM / f"examples/{name}.yaml").read_text())
    return values


def read_all(text: str) -> list[Manifest]:
    """Return the documents of `text`, empty ones left out."""
    found = yaml.load_all(text, UniqueKeys)
    return [dict(one) for one in found if one]


def changed(values: Values, **changes: Any) -> Values:
    """Return `values` with others at dotted places: `networkPolicy__enabled=False`."""
    out: Values = json.loads(json.dumps(values))
    for place, value in changes.items():
        *path, last = place.split("__")
        inner = out
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return out


def render(values: Values) -> list[Manifest]:
    """Return the manifests of a release, hooks among them. Raises `HelmError` as `helm template`
    fails: for values that the schema or a template refuses.
    """
    return _render(json.dumps(values))


@functools.cache
def _render(values: str) -> list[Manifest]:
    files = chart().render(json.loads(values), name=RELEASE, namespace=NAMESPACE)
    return [
        one
        for path, text in sorted(files.items())
        if path.endswith(".yaml")
        for one in read_all(text)
    ]


def notes(values: Values) -> str:
    """Return what `helm install` prints at its end."""
    files = chart().render(values, name=RELEASE, namespace=NAMESPACE)
    return next((text for path, text in files.items() if path.endswith("NOTES.txt")), "")


def chart(folder: Path = CHART) -> Any:
    """Return the chart, loaded anew: rendering takes dependencies that are off out of it.

    Skips where Helm's library is not installed.
    """
    helm = pytest.importorskip("helm_python")
    return helm.Chart.load(folder)


def named(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Return the manifests of a kind by name."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def templates(one: Manifest) -> list[Manifest]:
    """Return the pod templates of a workload; none of other kinds."""
    match one["kind"]:
        case "Deployment" | "StatefulSet" | "DaemonSet" | "Job":
            return [one["spec"]["template"]]
        case "LeaderWorkerSet":
            both = one["spec"]["leaderWorkerTemplate"]
            return [both[role] for role in ("leaderTemplate", "workerTemplate") if role in both]
        case "Pod":
            return [{"metadata": one["metadata"], "spec": one["spec"]}]
        case _:
            return []


def pods(manifests: list[Manifest]) -> list[tuple[str, Manifest]]:
    """Return (KIND/NAME, pod template) of every workload; a LeaderWorkerSet has two."""
    return [
        (f"{one['kind']}/{one['metadata']['name']}", template)
        for one in manifests
        for template in templates(one)
    ]


def containers(template: Manifest) -> list[Manifest]:
    """Return the containers of a pod, those of its start among them."""
    spec = template["spec"]
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def is_ours(container: Manifest) -> bool:
    """Return whether a container runs a kvmesh command."""
    image = container["image"].rpartition("/")[2]
    return image.startswith("kvmesh") and "command" not in container


@functools.cache
def kustomize(overlay: str) -> list[Manifest]:
    """Return the manifests of an overlay of deploy/k8s. Skips where there is no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on this machine")
    built = subprocess.run(
        [kubectl, "kustomize", HELM.parent / "k8s/overlays" / overlay],
        capture_output=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr.decode()
    return read_all(built.stdout.decode())
