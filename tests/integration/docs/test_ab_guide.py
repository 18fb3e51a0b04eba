"""The A/B guide: what it runs against a front door runs, what it says to kubectl exists."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvmesh.core.routing.decision import RouterMode
from kvmesh.settings.roles import CostSettings
from tests.integration.chart.rendering import kustomize
from tests.integration.docs.test_docs import ROOT, blocks
from tests.integration.support import live_router

pytestmark = pytest.mark.integration

PAGE = ROOT / "docs/start/ab-testing.md"
FRONT_DOORS = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
ENGINES = 4


@asynccontextmanager
async def front_door(mode: RouterMode) -> AsyncIterator[str]:
    """Serve a deployment of its own: a router over engines of its own."""
    cost = CostSettings(router_mode=mode)
    async with (
        live_router.mockers(ENGINES) as engines,
        live_router.router([one.url for one in engines], cost=cost) as url,
    ):
        yield url


async def run(script: str, folder: Path, path: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=folder,
        env=os.environ
        | {"PATH": f"{path}:{os.environ['PATH']}", "COLUMNS": "120", "KVMESH_SETTLE_S": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{script}\n{output.decode()}"
    return output.decode()


async def test_what_the_guide_runs_against_a_front_door_runs(tmp_path: Path) -> None:
    launcher = tmp_path / "bin/kvmesh"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvmesh "$@"\n')
    launcher.chmod(0o755)
    scripts = [text for kind, text in blocks(PAGE) if kind == "sh"]
    outputs: list[str] = []

    async with front_door("kv") as kv, front_door("round-robin") as turns:
        for script in scripts:
            if "--live" in script:
                await live_router.settled(kv, "finished", 216)
            live = script.replace(FRONT_DOORS[0], kv).replace(FRONT_DOORS[1], turns)
            outputs.append(await run(live, tmp_path, launcher.parent))

    first, second = (json.loads((tmp_path / name).read_text())["runs"] for name in
                     ("first.json", "second.json"))  # fmt: skip
    for runs, names in ((first, ["round-robin", "kv"]), (second, ["kv", "round-robin"])):
        assert [one["name"] for one in runs] == names
        hits = {one["name"]: one["summary"]["hit_rate"] for one in runs}
        assert hits["kv"] > hits["round-robin"] + 0.1
        assert {one["summary"]["succeeded"] for one in runs} == {54}
    *_, live, both = outputs
    assert re.search(r"requests that named another policy, or a worker +108", live)
    assert [line.split()[0] for line in both.splitlines()[-2:]] == ["round-robin.json", "kv.json"]
    apart = [float(found) for found in re.findall(r"hits +([\d.]+)%", both)]
    assert apart[1] > apart[0] + 10.0


def kubectl_lines() -> list[str]:
    lines = [line for kind, text in blocks(PAGE) if not kind for line in text.splitlines()]
    return [line for line in lines if line.startswith("kubectl ")]


@pytest.mark.parametrize("line", kubectl_lines())
def test_what_the_guide_says_to_kubectl_is_there(line: str) -> None:
    namespace = re.search(r"-n (\S+)", line)
    overlay = "round-robin" if namespace and namespace[1] != "kvmesh" else "prod"
    manifests = kustomize(overlay)
    named = {(one["kind"].lower(), one["metadata"]["name"]) for one in manifests}

    if namespace:
        assert {one["metadata"].get("namespace", namespace[1]) for one in manifests} == {
            namespace[1]
        }
    for kind, name in re.findall(r"\b(deployment|service)/(\S+)", line):
        assert (kind, name) in named
    for folder in re.findall(r"-k (\S+)", line):
        assert (ROOT / folder / "kustomization.yaml").exists()
    for variable in re.findall(r"KVMESH_(\w+)=", line):
        assert variable == "ROUTER_MODE"


def test_the_baseline_of_two_deployments_is_the_other_with_routers_in_turn() -> None:
    (mesh,) = (one for one in kustomize("round-robin") if one["kind"] == "ConfigMap")
    (space,) = (one for one in kustomize("round-robin") if one["kind"] == "Namespace")
    kinds = sorted((one["kind"], one["metadata"]["name"][:12]) for one in kustomize("prod"))

    assert mesh["data"]["KVMESH_ROUTER_MODE"] == "round-robin"
    assert space["metadata"]["name"] == "kvmesh-round-robin"
    same = [(kind, name) for kind, name in kinds if kind not in {"Namespace", "ConfigMap"}]
    found = sorted((one["kind"], one["metadata"]["name"][:12]) for one in kustomize("round-robin"))
    assert [one for one in found if one[0] not in {"Namespace", "ConfigMap"}] == same
