"""What a release is refused for."""

import re
import subprocess
from pathlib import Path

import pytest

from deploy.release.checks import check_tree, read_version
from deploy.release.errors import ReleaseError

ROOT = Path(__file__).parents[3]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## [1.2.3] - 2026-01-02\n### Added\n- A thing.\n"

LAB = "benchmarks/lab/pyproject.toml"
PROJECT = '[project]\nversion = "{}"\ndependencies = ["kvmesh=={}"]\n'


def git(tree: Path, *words: str) -> str:
    owner = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", *owner, *words]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout


def write(tree: Path, name: str, text: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that can be released as 1.2.3."""
    write(tmp_path, "kvmesh/version.py", 'VERSION: Final = "1.2.3"\n')
    write(tmp_path, "CHANGELOG.md", CHANGELOG)
    write(tmp_path, "deploy/helm/kvmesh/Chart.yaml", 'version: 1.2.3\nappVersion: "1.2.3"\n')
    write(tmp_path, LAB, PROJECT.format("1.2.3", "1.2.3"))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    return tmp_path


def test_a_committed_tree_whose_versions_agree_is_released(tree: Path) -> None:
    assert check_tree(tree) == "1.2.3"

    git(tree, "tag", "v1.2.3")

    assert check_tree(tree) == "1.2.3"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", "## Unreleased\n- A thing.\n", "has no section of 1.2.3"),
        ("CHANGELOG.md", "## [1.2.3] - soon\n- A thing.\n", "has no section of 1.2.3"),
        ("CHANGELOG.md", "## [1.2.3] - 2026-01-02\n\n## [1.2.2] - 2026-01-01\n- A.\n", "is empty"),
        ("deploy/helm/kvmesh/Chart.yaml", "version: 1.2.3\nappVersion: 1.2.2\n", "is 1.2.2"),
        ("deploy/helm/kvmesh/Chart.yaml", "appVersion: 1.2.3\n", "version is none"),
        (LAB, PROJECT.format("1.2.2", "1.2.3"), "version is 1.2.2"),
        (LAB, PROJECT.format("1.2.3", "1.2.2"), "dependencies is ['kvmesh==1.2.2']"),
        ("kvmesh/version.py", 'VERSION: Final = "1.2.3+dirty"\n', "of the form 1.2.3"),
    ],
)
def test_versions_that_disagree_are_refused(tree: Path, name: str, text: str, reason: str) -> None:
    write(tree, name, text)
    git(tree, "commit", "-qam", "Disagree")

    with pytest.raises(ReleaseError, match=re.escape(reason)):
        check_tree(tree)


def test_all_that_is_in_the_way_is_said_at_once(tree: Path) -> None:
    write(tree, "new.py", "")
    (tree / "deploy/helm/kvmesh/Chart.yaml").unlink()
    (tree / LAB).unlink()
    write(tree, "CHANGELOG.md", "")

    with pytest.raises(ReleaseError) as refused:
        check_tree(tree)

    for reason in ("new.py", "Chart.yaml is missing", f"{LAB} is missing", "no section of 1.2.3"):
        assert reason in str(refused.value)


def test_a_version_is_not_released_twice(tree: Path) -> None:
    git(tree, "tag", "v1.2.3")
    write(tree, "kvmesh/more.py", "")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "Go on")

    with pytest.raises(ReleaseError, match="raise VERSION"):
        check_tree(tree)


def test_this_tree_has_a_version_with_a_section_and_a_chart() -> None:
    version = read_version(ROOT)

    assert f"\n## [{version}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    chart = (ROOT / "deploy/helm/kvmesh/Chart.yaml").read_text(encoding="utf-8")
    assert f'appVersion: "{version}"' in chart
