"""What an installation has, and what its metadata say."""

import fnmatch
import re
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvmesh.version import VERSION

ROOT = Path(__file__).parents[3]
HOME = "https://github.com/kvmesh/kvmesh"


LAB = "benchmarks/lab/"


def read_project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def tracked(*below: str) -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "-z", *below], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip("no git repository: an sdist")
    return [name for name in found.stdout.split("\0") if name]


@pytest.mark.parametrize(("project", "package"), [("", "kvmesh"), (LAB, "kvmesh_lab")])
def test_a_wheel_has_each_file_of_the_package_that_is_no_source(project: str, package: str) -> None:
    data = read_project(project)["tool"]["setuptools"]["package-data"]
    patterns = [f"{name.replace('.', '/')}/{one}" for name, ones in data.items() for one in ones]

    left_out = [
        name
        for path in tracked(f"{project}{package}")
        if not (name := path.removeprefix(project)).endswith(".py")
        and not name.startswith("kvmesh/native/")
        and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]

    assert left_out == []


def test_the_laboratory_is_of_the_version_that_it_asks_of_the_router() -> None:
    ours, lab = read_project("")["project"], read_project(LAB)["project"]

    assert lab["version"] == VERSION
    assert lab["dependencies"] == [f"kvmesh=={VERSION}"]
    assert lab["requires-python"] == ours["requires-python"]
    assert not set(lab["optional-dependencies"]) & set(ours["optional-dependencies"])


@pytest.mark.parametrize("name", ["kvmesh.mocker", "kvmesh.simulator", "kvmesh.replay"])
def test_the_router_has_no_package_of_the_laboratory(name: str) -> None:
    assert find_spec(name) is None


def test_the_sdist_takes_each_tree_that_is_tracked() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    trees = set(re.findall(r"^graft (\S+)$", manifest, re.MULTILINE))
    (names,) = re.findall(r"^include (.+)$", manifest, re.MULTILINE)

    for name in tracked():
        tree, _, below = name.partition("/")
        assert tree in trees if below else any(fnmatch.fnmatch(name, one) for one in names.split())


@pytest.mark.parametrize("project", ["", LAB])
def test_the_metadata_lead_to_one_repository(project: str) -> None:
    urls = read_project(project)["project"]["urls"]

    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    assert all(url.startswith(HOME) or ".github.io/" in url for url in urls.values())
    assert f"[0.1.0]: {HOME}/" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_tools_of_a_release_are_locked_by_hash() -> None:
    folder = ROOT / "deploy/release"
    names = re.compile(r"^([a-z][\w-]+)", re.MULTILINE)
    wanted = names.findall((folder / "tools.in").read_text(encoding="utf-8"))
    text = (folder / "tools.txt").read_text(encoding="utf-8")
    pinned = re.compile(r"^(\S+)==.*((?:\n {4}--hash=sha256:\S+.*)+)$", re.MULTILINE)

    locked = {found[1] for found in pinned.finditer(text)}

    assert wanted
    assert set(wanted) <= locked
    assert locked == set(names.findall(text))
