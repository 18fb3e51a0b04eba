"""What an installation has, and what its metadata say."""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
HOME = "https://github.com/kvmesh/kvmesh"


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked(*below: str) -> list[str]:
    found = subprocess.run(
        ["git", "ls-files", "-z", *below], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        pytest.skip("no git repository: an sdist")
    return [name for name in found.stdout.split("\0") if name]


def test_a_wheel_has_each_file_of_the_package_that_is_no_source(settings: dict[str, Any]) -> None:
    data = settings["tool"]["setuptools"]["package-data"]
    patterns = [f"{name.replace('.', '/')}/{one}" for name, ones in data.items() for one in ones]

    left_out = [
        name
        for name in tracked("kvmesh")
        if not name.endswith(".py")
        and not name.startswith("kvmesh/native/")
        and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]

    assert left_out == []


def test_the_sdist_takes_each_tree_that_is_tracked() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    trees = set(re.findall(r"^graft (\S+)$", manifest, re.MULTILINE))
    (names,) = re.findall(r"^include (.+)$", manifest, re.MULTILINE)

    for name in tracked():
        tree, _, below = name.partition("/")
        assert tree in trees if below else any(fnmatch.fnmatch(name, one) for one in names.split())


def test_the_metadata_lead_to_one_repository(settings: dict[str, Any]) -> None:
    urls = settings["project"]["urls"]

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
