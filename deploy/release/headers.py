"""The headers of each CPython: of an interpreter that is installed, else of Debian's package."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.release.commands import run
from deploy.release.errors import ReleaseError

SUITES: Final = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
"""The release of Debian that has it."""
MIRROR: Final = "http://deb.debian.org/debian"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
ASK: Final = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sys.version_info.micro, sys.version_info.releaselevel)
print(sysconfig.get_config_var("Py_DEBUG") or sysconfig.get_config_var("Py_GIL_DISABLED") or 0)
print(sysconfig.get_path("include"))
print(sysconfig.get_path("platinclude"))
"""
PATCH_LEVEL: Final = re.compile(r'^#define PY_VERSION\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Headers:
    """`folders` are searched in their order; `version` is that of CPython: 3.13.0."""

    version: str
    source: str
    folders: tuple[Path, ...]


def find_headers(python: str, machine: str, asked: Iterable[str], work: Path) -> Headers:
    """Return the headers of CPython `python` (3.13) for a machine.

    The newest of the interpreters `asked`, of PATH and of pyenv is taken: all macros that differ
    between 64-bit Linux machines in its pyconfig.h are about libraries that the core does not use.
    Without one they are downloaded from Debian, verified by its keyring. Raises `ReleaseError`.
    """
    found = sorted(interpreters(python, asked), key=lambda one: one[0])
    if found:
        return found[-1][1]
    return from_debian(python, machine, work)


def interpreters(python: str, asked: Iterable[str]) -> Iterator[tuple[int, Headers]]:
    """Yield the headers of each interpreter of this minor version, with its micro version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    known = [
        *map(Path, asked),
        *(Path(folder) / f"python{python}" for folder in folders if folder),
        *pyenv.glob(f"{python}.*/bin/python{python}"),
    ]
    for program in dict.fromkeys(known):
        told = ask(program)
        if told is None or told[0] != python:
            continue
        yield int(told[1]), Headers(f"{python}.{told[1]}", str(program), told[2])


def ask(program: Path) -> tuple[str, str, tuple[Path, ...]] | None:
    """Return minor version, micro version and folders of headers of an interpreter; None for one
    that does not run, is a debug or free-threaded build or no final release, or has no headers
    that serve every machine.
    """
    try:
        told = subprocess.run(
            [program, "-I", "-c", ASK], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    versions, odd, *folders = told.stdout.splitlines()
    minor, micro, level = versions.split()
    include = tuple(dict.fromkeys(Path(folder) for folder in folders))
    if level != "final" or odd != "0" or not (include[0] / "Python.h").is_file():
        return None
    # Debian's leads on to those of one machine, below /usr/include: no place for a cross compiler.
    pyconfig = (include[-1] / "pyconfig.h").read_text(encoding="utf-8")
    return (minor, micro, include) if "linux-gnu/" not in pyconfig else None


def from_debian(python: str, machine: str, work: Path) -> Headers:
    """Return the headers in Debian's libpython-dev, downloaded and unpacked below `work`."""
    suite = SUITES.get(python)
    tools = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if suite is None or tools or not KEYRING.is_file():
        why = (
            f"Debian has no package of it in {', '.join(SUITES.values())}"
            if suite is None
            else f"Debian's package needs {', '.join(tools) or KEYRING}, which is not here"
        )
        raise ReleaseError(
            f"no headers of CPython {python}: no python{python} in PATH or ~/.pyenv/versions, and "
            f"{why}; name an interpreter with its headers: --python PATH, "
            f"or leave it out: --pythons"
        )
    architecture = ARCHITECTURES[machine]
    root = work / f"debian-{python}-{architecture}"
    unpacked = root / "unpacked"
    if not unpacked.is_dir():
        download(f"libpython{python}-dev", suite, architecture, root)
    include = unpacked / "usr/include"
    folder = include / f"python{python}"
    level = PATCH_LEVEL.search((folder / "patchlevel.h").read_text(encoding="utf-8"))
    if level is None or not level[1].startswith(python + "."):
        raise ReleaseError(f"{folder}/patchlevel.h names no version {python}")
    return Headers(level[1], f"Debian {suite} {architecture}", (folder, include))


def download(package: str, suite: str, architecture: str, root: Path) -> None:
    """Unpack a package of Debian in `root`/unpacked.

    apt does it with a state of its own: it checks the signature of the index and the hash of the
    package, and neither reads nor changes what is installed here.
    """
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "state/status").touch()
    sources = root / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {MIRROR} {suite} main\n", encoding="utf-8")
    options = (
        *("-o", f"Dir::State={root}/state", "-o", f"Dir::State::status={root}/state/status"),
        *("-o", f"Dir::Cache={root}/cache", "-o", f"Dir::Etc::SourceList={sources}"),
        *("-o", "Dir::Etc::SourceParts=-", "-o", "Dir::Etc::Parts=-"),
        *("-o", f"APT::Architecture={architecture}", "-o", f"APT::Architectures={architecture}"),
        *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "-qq"),
        *("-o", "Acquire::Languages=none"),
    )
    run("apt-get", *options, "update")
    run("apt-get", *options, "download", package, cwd=root / "packages")
    (archive,) = (root / "packages").glob("*.deb")
    run("dpkg-deb", "--extract", str(archive), str(root / "partial"))
    (root / "partial").rename(root / "unpacked")
