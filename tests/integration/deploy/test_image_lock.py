"""What the image installs: locked, every file by its hash, and what pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy/docker"
PINNED = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?: ; [^\\]+)?(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)  # fmt: skip  # noqa: E501


def locked(name: str) -> dict[str, str]:
    """Return the versions in a lock file. Fails for a line that has no hash."""
    text = (DOCKER / name).read_text(encoding="utf-8")
    found = list(PINNED.finditer(text))
    named = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len(found) == len(named), "a line without a hash"
    return {one["name"]: one["version"] for one in found}


def test_the_lock_has_what_the_project_asks_for_by_hash() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    versions = locked("constraints.txt")
    extra = asked["project"]["optional-dependencies"]["kubernetes"]
    for text in (*asked["project"]["dependencies"], *extra):
        wish = Requirement(text)
        assert wish.specifier.contains(versions[wish.name]), f"{text}: run `make lock`"
    builds = locked("build.txt")
    for text in asked["build-system"]["requires"]:
        wish = Requirement(text)
        assert wish.specifier.contains(builds[wish.name]), f"{text}: run `make lock`"


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"bin/pip install (.*?)(?: \\)?$", text, re.MULTILINE)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-deps --no-build-isolation" in arguments
