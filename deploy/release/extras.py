"""What a release has beside sdist and wheels: chart, image, bill of materials, hashes."""

import gzip
import hashlib
import shutil
import sys
from pathlib import Path
from typing import Final

from deploy.release.archives import normalise_tar
from deploy.release.commands import run
from deploy.release.errors import ReleaseError

CONSTRAINTS: Final = Path("deploy/docker/constraints.txt")
PACKAGE: Final = (
    "import sys, helm_python; print(helm_python.package(sys.argv[1], destination=sys.argv[2]))"
)


def add_constraints(exported: Path, out: Path) -> Path:
    """Copy the lock file that the image is built from."""
    return Path(shutil.copy(exported / CONSTRAINTS, out / CONSTRAINTS.name))


def package_chart(exported: Path, out: Path, version: str, epoch: int) -> Path:
    """Package the chart as Helm does, byte-equal."""
    run(sys.executable, "-c", PACKAGE, str(exported / "deploy/helm/kvmesh"), str(out), cwd=out)
    (packed,) = out.glob(f"kvmesh-{version}.tgz")
    normalise_tar(packed, epoch)
    return packed.rename(out / f"kvmesh-chart-{version}.tgz")


def write_sbom(exported: Path, out: Path, version: str) -> Path:
    """Write what wheels and image install at run time, as CycloneDX."""
    path = out / f"kvmesh-{version}.cdx.json"
    run(
        *(sys.executable, "-m", "cyclonedx_py", "requirements", str(exported / CONSTRAINTS)),
        *("--pyproject", str(exported / "pyproject.toml"), "--output-reproducible"),
        *("--output-file", str(path)),
    )
    return path


def build_image(exported: Path, out: Path, version: str) -> Path:
    """Build the image for this machine and save it, with its layers, as `docker load` reads it.

    Raises `ReleaseError` where no Docker engine answers or the build fails. Layers hold the times
    at which they were made: images are not byte-equal.
    """
    if shutil.which("docker") is None:
        raise ReleaseError("the image: docker is not installed")
    run("docker", "version", "--format", "{{.Server.Version}}")
    name = f"kvmesh:{version}"
    run("docker", "build", "--file", "deploy/docker/Dockerfile", "--tag", name, ".", cwd=exported)
    machine = run("docker", "image", "inspect", "--format", "{{.Architecture}}", name).strip()
    path = out / f"kvmesh-image-{version}-linux-{machine}.tar.gz"
    plain = path.with_suffix("")
    run("docker", "save", "--output", str(plain), name)
    with (
        plain.open("rb") as saved,
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
    ):
        shutil.copyfileobj(saved, packed)
    plain.unlink()
    return path


def write_sums(out: Path) -> Path:
    """Write SHA256SUMS of all files in `out`, as `sha256sum --check` reads it."""
    path = out / "SHA256SUMS"
    files = sorted(one for one in out.iterdir() if one.is_file() and one != path)
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files]
    path.write_text("".join(lines), encoding="utf-8")
    return path
