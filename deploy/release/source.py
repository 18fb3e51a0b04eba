"""The sdist, and the wheel without a core that all others are made of."""

import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.release.archives import normalise_tar
from deploy.release.commands import run

BUILD: Final = (
    "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
)


@dataclass(frozen=True)
class Source:
    """`tree` is the unpacked sdist; `pure` a wheel of it for any system."""

    sdist: Path
    tree: Path
    pure: Path


def export(root: Path, to: Path) -> None:
    """Unpack the commit that is checked out: what is not tracked is in no release."""
    to.mkdir(parents=True)
    archive = to.with_suffix(".tar")
    run("git", "archive", "--format=tar", f"--output={archive}", "HEAD", cwd=root)
    with tarfile.open(archive) as packed:
        packed.extractall(to, filter="data")
    archive.unlink()


def build_source(exported: Path, out: Path, work: Path, epoch: int) -> Source:
    """Make the sdist of an exported commit in `out`, and from it the pure wheel, below `work`."""
    run(sys.executable, "-c", BUILD, "build_sdist", str(out), cwd=exported)
    (sdist,) = out.glob("*.tar.gz")
    normalise_tar(sdist, epoch)
    unpacked = work / "sdist"
    with tarfile.open(sdist) as packed:
        packed.extractall(unpacked, filter="data")
    (tree,) = unpacked.iterdir()
    pure = work / "pure"
    pure.mkdir()
    env = {"KVMESH_BUILD_CORE": "off", "SOURCE_DATE_EPOCH": str(epoch)}
    run(sys.executable, "-c", BUILD, "build_wheel", str(pure), cwd=tree, env=env)
    (wheel,) = pure.glob("*-py3-none-any.whl")
    return Source(sdist, tree, wheel)
