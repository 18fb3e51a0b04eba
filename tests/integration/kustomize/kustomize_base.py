"""The kustomize base is the chart rendered.

`python -m tests.integration.kustomize.kustomize_base` writes it.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "helm/kvmesh"
BASE = DEPLOY / "k8s/base"
KEPT = {"kustomization.yaml", "values.yaml"}
MODEL = "Qwen/Qwen2.5-7B-Instruct"
OVERLAYS = DEPLOY / "k8s/overlays"
PATCHES = {
    OVERLAYS / "prod/tokenizer.yaml": ("router-chat", "router"),
    OVERLAYS / "gateway/tokenizer.yaml": ("picker-chat", "picker"),
}
"""Which Deployment and container each patch is for."""
TOKENIZER_HEAD = """# The tokenizer of the engines' model, fetched by an init container. Written by
#   python -m tests.integration.kustomize.kustomize_base
"""
LEFT_OUT = re.compile(
    r"^ *(namespace: kvmesh|app\.kubernetes\.io/managed-by: .*|helm\.sh/chart: .*|"
    r"app\.kubernetes\.io/version: .*)?\n",
    re.MULTILINE,
)
"""Lines of Helm's own affairs, and empty ones."""


def rendered() -> dict[str, str]:
    """Return the files of the base by name: one a template, of routers one a bucket."""
    values = yaml.safe_load((BASE / "values.yaml").read_text())
    made = Chart.load(str(CHART)).render(values, name="kvmesh", namespace="kvmesh")
    files: dict[str, str] = {}
    for path, text in made.items():
        if "/tests/" in path or path.endswith(".txt") or not list(filter(None, documents(text))):
            continue
        if path.endswith("routers.yaml"):
            for part in re.split(r"^---\n", text, flags=re.MULTILINE):
                for document in documents(part):
                    name = f"router-{document['metadata']['labels']['kvmesh/bucket']}.yaml"
                    files[name] = f"{files.get(name, '')}---\n{part}"
        elif path.endswith("configmap.yaml"):
            # Kustomize's generator names it by what is in it, so that pods follow a change.
            [document] = documents(text)
            files["mesh.env"] = "".join(f"{key}={one}\n" for key, one in document["data"].items())
        else:
            files[Path(path).name] = text
    return {
        name: LEFT_OUT.sub("", text).removeprefix("---\n") for name, text in sorted(files.items())
    }


def tokenizer_patch(deployment: str, container: str) -> str:
    """Return the patch that gives a Deployment the tokenizer of the overlays' model."""
    values = {
        "namePrefix": "",
        "buckets": {"chat": {"tokenizer": {"source": "init", "init": {"model": MODEL}}}},
    }
    made = Chart.load(str(CHART)).render(values, name="kvmesh", namespace="kvmesh")
    [pod] = [
        one["spec"]["template"]["spec"]
        for one in documents(made["kvmesh/templates/routers.yaml"])
        if one["kind"] == "Deployment"
    ]
    [router] = pod["containers"]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment},
        "spec": {
            "template": {
                "spec": {
                    "initContainers": [one | {"image": "kvmesh"} for one in pod["initContainers"]],
                    "containers": [
                        {
                            "name": container,
                            "env": [e for e in router["env"] if e["name"] == "KVMESH_TOKENIZER"],
                            "volumeMounts": [
                                one for one in router["volumeMounts"] if one["name"] == "tokenizer"
                            ],
                        }
                    ],
                    "volumes": [one for one in pod["volumes"] if one["name"] == "tokenizer"],
                }
            }
        },
    }
    text: str = yaml.dump(patch, Dumper=READABLE, sort_keys=False, width=200)
    return TOKENIZER_HEAD + text


READABLE: Any = type("Readable", (yaml.SafeDumper,), {})
"""Writes texts of several lines as such."""


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


READABLE.add_representer(str, _text)


def documents(text: str) -> list[dict[str, Any]]:
    """Return the objects in a text."""
    return [one for one in yaml.safe_load_all(text) if one]


def main() -> None:
    """Write the base anew."""
    files = rendered()
    for old in BASE.iterdir():
        if old.name not in KEPT | files.keys():
            old.unlink()
    for name, text in files.items():
        (BASE / name).write_text(text)
    for path, target in PATCHES.items():
        path.write_text(tokenizer_patch(*target))


if __name__ == "__main__":
    main()
