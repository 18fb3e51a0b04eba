"""The sdists, the wheel without a core that all others are made of, and that of the laboratory."""

import shutil
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.release.archives import normalise_tar, write_zip
from deploy.release.commands import run

LAB: Final = Path("benchmarks/lab")
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


def build_lab(exported: Path, out: Path, work: Path, epoch: int) -> Path:
    """Make sdist and wheel of kvmesh-lab in `out`; return the wheel, which is for any system.

    Built below `work`: the image is made of the exported commit as it is.
    """
    folder = Path(shutil.copytree(exported / LAB, work / "lab"))
    env = {"SOURCE_DATE_EPOCH": str(epoch)}
    for what in ("build_sdist", "build_wheel"):
        run(sys.executable, "-c", BUILD, what, str(out), cwd=folder, env=env)
    (sdist,) = out.glob("kvmesh_lab-*.tar.gz")
    normalise_tar(sdist, epoch)
    (wheel,) = out.glob("kvmesh_lab-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    write_zip(wheel, contents, epoch)
    return wheel
