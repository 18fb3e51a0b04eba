"""The workflows of GitHub call make and push; linted here, never run here."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.extras import write_sums

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"uses: (actions/[\w-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
CALLS = re.compile(r"^(?:make |\.ci/run$|test |gh release create |printf )")
PUBLISH = ROOT / "deploy/release/publish.sh"
PUSHERS = ("docker", "helm", "uv", "gh")
PUSHING = ("python-index", "registry", "page")
"""Jobs whose steps are run here in their order, with programs that only write down what they do."""


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_jobs_may_the_least(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    used = [line.strip().removeprefix("- ") for line in text.splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line)] == []
    assert "\npermissions: {}\n" in text
    assert all("permissions" in job for job in jobs(path).values())
    assert "Never run there yet" in text


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_they_do_nothing_that_make_does_not(path: Path) -> None:
    steps = [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]
    lines = [line for step in steps for line in step.splitlines()]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name for line in re.findall(r"^([\w -]+):", makefile, re.MULTILINE) for name in line.split()
    }

    assert [line for line in lines if not CALLS.match(line)] == []
    for line in lines:
        if line.startswith("make "):
            words = re.sub(r'\w+=("[^"]*"|\S+)', "", line).split()[1:]
            assert words
            assert set(words) <= targets


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A dist/ of two machines, and programs that write down what they are asked to push."""
    dist = tmp_path / "dist"
    dist.mkdir()
    for name in (
        "kvmesh-1.2.3.tar.gz",
        "kvmesh-1.2.3-cp311-cp311-musllinux_1_2_x86_64.whl",
        "kvmesh_lab-1.2.3.tar.gz",
        "kvmesh_lab-1.2.3-py3-none-any.whl",
        "kvmesh-chart-1.2.3.tgz",
        "kvmesh-image-1.2.3-linux-amd64.tar.gz",
        "kvmesh-image-1.2.3-linux-arm64.tar.gz",
    ):
        (dist / name).write_text(name)
    (dist / "BUILD.json").write_text('{\n  "version": "1.2.3",\n  "commit": "0"\n}\n')
    write_sums(dist)
    for program in PUSHERS:
        fake = tmp_path / program
        reads = 'case "$*" in *stdin*) cat > /dev/null ;; esac'
        fake.write_text(f'#!/bin/sh\n{reads}\necho {program} "$@" >> {tmp_path}/done\n')
        fake.chmod(0o755)
    return tmp_path


def publish(release: Path, what: str) -> "subprocess.CompletedProcess[str]":
    env = os.environ | {
        "DIST": str(release / "dist"),
        "PATH": f"{release}:{os.environ['PATH']}",
        "REGISTRY": "r.example/k",
        "UV": "uv",
    }
    command = [str(PUBLISH), what]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_index_gets_sdist_and_wheels_and_no_image(release: Path) -> None:
    assert publish(release, "index").returncode == 0

    (line,) = (release / "done").read_text().splitlines()
    assert [Path(word).name for word in line.split()[2:]] == [
        "kvmesh-1.2.3.tar.gz",
        "kvmesh-1.2.3-cp311-cp311-musllinux_1_2_x86_64.whl",
        "kvmesh_lab-1.2.3.tar.gz",
        "kvmesh_lab-1.2.3-py3-none-any.whl",
    ]


def test_the_image_of_all_machines_has_one_tag(release: Path) -> None:
    assert publish(release, "image").returncode == 0

    lines = (release / "done").read_text().splitlines()
    name = "r.example/k/kvmesh:1.2.3"
    assert f"docker push --quiet {name}-amd64" in lines
    create = "docker buildx imagetools create --tag"
    assert lines[-1] == f"{create} {name} {name}-amd64 {name}-arm64"


def test_the_chart_goes_beside_the_image(release: Path) -> None:
    assert publish(release, "chart").returncode == 0

    (line,) = (release / "done").read_text().splitlines()
    assert line.endswith("/kvmesh-chart-1.2.3.tgz oci://r.example/k/charts")


def test_what_is_not_what_was_made_is_not_pushed(release: Path) -> None:
    (release / "dist/kvmesh-1.2.3.tar.gz").write_text("another")

    assert publish(release, "index").returncode != 0
    assert publish(release, "anything").returncode != 0
    assert not (release / "done").exists()


def test_the_steps_that_publish_a_tag_run_in_a_fresh_clone(release: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone")
    clone = release / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", clone], check=True)
    shutil.copytree(release / "dist", clone / "dist")
    tools = clone / ".venv-release"
    (tools / "bin").mkdir(parents=True)
    shutil.copy(release / "uv", tools / "bin/uv")
    (tools / ".done").touch()
    github = {"GITHUB_REF_NAME": "v1.2.3", "GITHUB_ACTOR": "somebody", "REGISTRY": "r.example/k"}
    path = {"PATH": f"{release}:{os.environ['PATH']}"}

    found = jobs(ROOT / ".github/workflows/release.yml")
    for step in (step for job in PUSHING for step in found[job]["steps"] if "run" in step):
        env = os.environ | github | path | dict.fromkeys(step.get("env", {}), "a secret")
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(line, cwd=clone, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, step["run"] + done.stdout + done.stderr

    lines = (release / "done").read_text().splitlines()
    assert [line.split()[0] for line in lines if "login" not in line] == [
        "uv", *["docker"] * 7, "helm", "gh",
    ]  # fmt: skip
    assert sum("login ghcr.io --username somebody --password-stdin" in line for line in lines) == 2
    assert lines[-1].startswith("gh release create v1.2.3 --verify-tag --title v1.2.3 --notes-file")
    assert "a secret" not in "".join(lines)
