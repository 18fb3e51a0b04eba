"""What the image installs: locked, every file by its hash, and what pyproject.toml asks for."""

import importlib.metadata
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kvmesh.version import VERSION

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy/docker"
EXTRAS = ("kubernetes", "fast")
PINNED = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>\S+)(?: ; [^\\]+)?(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)  # fmt: skip  # noqa: E501


def locked(name: str) -> dict[str, str]:
    """Return the versions in a lock file. Fails for a line that has no hash."""
    text = (DOCKER / name).read_text(encoding="utf-8")
    found = list(PINNED.finditer(text))
    named = [line for line in text.splitlines() if line and line[0] not in "# "]
    assert len(found) == len(named), "a line without a hash"
    return {one["name"]: one["version"] for one in found}


def asked_for(pyproject: Mapping[str, Any]) -> list[Requirement]:
    """Return what the image is to have installed."""
    extras = pyproject["project"]["optional-dependencies"]
    more = [text for extra in EXTRAS for text in extras[extra]]
    return [Requirement(text) for text in (*pyproject["project"]["dependencies"], *more)]


def test_the_lock_has_what_the_project_asks_for_by_hash() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    versions = locked("constraints.txt")
    for wish in asked_for(asked):
        assert wish.specifier.contains(versions[wish.name]), f"{wish}: run `make lock`"
    lab = tomllib.loads((ROOT / "benchmarks/lab/pyproject.toml").read_text(encoding="utf-8"))
    builds = locked("build.txt")
    for text in (*asked["build-system"]["requires"], *lab["build-system"]["requires"]):
        wish = Requirement(text)
        assert wish.specifier.contains(builds[wish.name]), f"{text}: run `make lock`"


def test_what_is_left_out_is_needed_by_huggingface_hub_alone() -> None:
    """tokenizers asks for it, and loads it only to download: kvmesh reads directories."""
    text = (DOCKER / "left-out.txt").read_text(encoding="utf-8")
    left_out = {line for line in text.splitlines() if not line.startswith("#")}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    with_hub = closure(asked_for(asked), without="")
    without = closure(asked_for(asked), without="huggingface-hub")

    assert left_out == with_hub - without
    # With hashes pip installs nothing that the lock does not name.
    assert with_hub <= set(locked("constraints.txt")), "run `make lock`"


def closure(wishes: list[Requirement], *, without: str) -> set[str]:
    """Return what installing `wishes` installs here, but for what `without` asks for."""
    environment = {key: str(value) for key, value in default_environment().items()}
    found: set[str] = set()
    waiting = list(wishes)
    while waiting:
        one = waiting.pop()
        found.add(canonicalize_name(one.name))
        for text in importlib.metadata.requires(one.name) or ():
            wish = Requirement(text)
            marker = wish.marker
            holds = marker is None or any(
                marker.evaluate(environment | {"extra": extra}) for extra in ("", *one.extras)
            )
            if holds and canonicalize_name(wish.name) not in (found | {without}):
                waiting.append(wish)
    return found


def test_the_image_is_built_of_the_files_that_a_build_reads_and_says_its_version() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        name
        for line in re.findall(r"^COPY ([^-].*) /src/?\S*$", text, re.MULTILINE)
        for name in line.split()
    }
    let_in = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }

    wanted = {"kvmesh", "benchmarks/lab", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert wanted <= copied
    assert wanted <= let_in
    assert all((ROOT / name).exists() for name in copied)
    assert re.findall(r"^ARG VERSION=(.*)$", text, re.MULTILINE) == [VERSION]


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"bin/pip install (.*?)(?: \\)?$", text, re.MULTILINE)
    assert installs
    for arguments in installs:
        assert "--require-hashes" in arguments or "--no-deps --no-build-isolation" in arguments
