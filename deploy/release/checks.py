"""What a release is refused for, before anything is built."""

import re
import tomllib
from pathlib import Path
from typing import Final

from deploy.release.commands import run
from deploy.release.errors import ReleaseError
from deploy.release.notes import find_section
from deploy.release.source import LAB

VERSION: Final = re.compile(r'^VERSION: Final = "([^"]+)"$', re.MULTILINE)
SHOWN: Final = 5
NUMBERED: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


def read_version(root: Path) -> str:
    """Return the version of a tree. Raises `ReleaseError` for one that indexes refuse."""
    path = root / "kvmesh/version.py"
    found = VERSION.search(path.read_text(encoding="utf-8"))
    if found is None or not NUMBERED.fullmatch(found[1]):
        raise ReleaseError(f"{path}: VERSION must be of the form 1.2.3 or 1.2.3rc1")
    return found[1]


def check_tree(root: Path) -> str:
    """Return the version that the tree `root` can be released as.

    Raises `ReleaseError` that names everything in the way: changes that are not committed, no
    section of CHANGELOG.md, a chart or a kvmesh-lab of another version, a tag of the version on
    another commit.
    """
    version = read_version(root)
    problems = []
    if changed := run("git", "status", "--porcelain", cwd=root).splitlines():
        shown = ", ".join(line[3:] for line in changed[:SHOWN])
        more = len(changed) - SHOWN
        others = f" and {more} more" if more > 0 else ""
        problems.append(f"not committed: {shown}{others}; commit or stash it")
    try:
        find_section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    except ReleaseError as error:
        problems.append(str(error))
    problems += check_chart(root, version)
    problems += check_lab(root, version)
    tag = run("git", "tag", "--list", f"v{version}", cwd=root).strip()
    if tag and run("git", "rev-list", "-1", tag, cwd=root) != run(
        "git", "rev-parse", "HEAD", cwd=root
    ):
        problems.append(f"the tag {tag} is on another commit: raise VERSION in kvmesh/version.py")
    if problems:
        raise ReleaseError("no release:\n" + "\n".join(f"- {problem}" for problem in problems))
    return version


def check_chart(root: Path, version: str) -> list[str]:
    """Return what is wrong with the versions of the chart."""
    path = root / "deploy/helm/kvmesh/Chart.yaml"
    if not path.is_file():
        return [f"{path.relative_to(root)} is missing"]
    text = path.read_text(encoding="utf-8")
    problems = []
    for field in ("version", "appVersion"):
        found = re.search(rf"^{field}:\s*[\"']?([^\"'\s#]+)", text, re.MULTILINE)
        if found is None or found[1] != version:
            has = found[1] if found else "none"
            problems.append(f"{path.relative_to(root)}: {field} is {has}, VERSION is {version}")
    return problems


def check_lab(root: Path, version: str) -> list[str]:
    """Return what is wrong with the version of kvmesh-lab, and with the one of kvmesh it needs."""
    path = root / LAB / "pyproject.toml"
    if not path.is_file():
        return [f"{path.relative_to(root)} is missing"]
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    wanted = {"version": version, "dependencies": [f"kvmesh=={version}"]}
    return [
        f"{path.relative_to(root)}: {field} is {project.get(field)}, VERSION is {version}"
        for field, value in wanted.items()
        if project.get(field) != value
    ]
