"""`python -m deploy.release`: make a release of the commit that is checked out."""

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path

from deploy.release.checks import check_tree
from deploy.release.commands import run
from deploy.release.core import find_compiler
from deploy.release.errors import ReleaseError
from deploy.release.extras import (
    add_constraints,
    build_image,
    package_chart,
    write_sbom,
    write_sums,
)
from deploy.release.headers import find_headers
from deploy.release.notes import write_notes
from deploy.release.source import Source, build_lab, build_source, export
from deploy.release.targets import PYTHONS, TARGETS, Target
from deploy.release.wheels import assemble, check_platform

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Wishes:
    """What the command line asks for."""

    out: Path
    pythons: tuple[str, ...]
    targets: tuple[Target, ...]
    interpreters: tuple[str, ...]
    jobs: int
    image: bool
    image_alone: bool
    add: tuple[Path, ...]


def read(arguments: Sequence[str]) -> Wishes:
    """Return what is asked for."""
    names = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="replaced as a whole")
    parser.add_argument("--pythons", nargs="+", choices=PYTHONS, default=PYTHONS)
    parser.add_argument("--targets", nargs="+", choices=list(names), default=list(names))
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PATH",
        help="an interpreter with headers, beside those of PATH and ~/.pyenv; repeatable",
    )
    parser.add_argument("--jobs", type=int, default=2, help="files compiled at a time")
    parser.add_argument("--no-image", action="store_true", help="even if a Docker engine answers")
    parser.add_argument(
        "--image-alone", action="store_true", help="nothing else, on a machine of another kind"
    )
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="publish this, too: an image made on another machine; repeatable",
    )
    told = parser.parse_args(arguments)
    return Wishes(
        out=told.out.resolve(),
        pythons=tuple(told.pythons),
        targets=tuple(names[name] for name in told.targets),
        interpreters=tuple(told.python),
        jobs=told.jobs,
        image=not told.no_image,
        image_alone=told.image_alone,
        add=tuple(told.add),
    )


def say(text: str) -> None:
    """Print a step."""
    print(f"release: {text}", flush=True)


def make(wishes: Wishes, work: Path) -> None:
    """Make everything below `work`, then put it in the place of `wishes.out`.

    Raises `ReleaseError` with `wishes.out` as it was.
    """
    version = check_tree(ROOT)
    out = work / "dist"
    out.mkdir()
    exported = work / "exported"
    export(ROOT, exported)
    say(f"kvmesh {version} of {run('git', 'log', '-1', '--format=%h, %ci', cwd=ROOT).strip()}")
    if wishes.image_alone:
        build_image(exported, out, version)
    else:
        fill(wishes, exported, out, version)
    if wishes.out.exists():
        shutil.rmtree(wishes.out)
    shutil.move(out, wishes.out)
    say(f"{len(list(wishes.out.iterdir()))} files in {wishes.out}")


def fill(wishes: Wishes, exported: Path, out: Path, version: str) -> None:
    """Write everything that a release has into `out`."""
    epoch = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    work = out.parent
    source = build_source(exported, out, work, epoch)
    used = make_wheels(wishes, source, out, work, epoch)
    say(build_lab(exported, out, work, epoch).name)
    missing: list[str] = []
    add_constraints(exported, out)
    package_chart(exported, out, version, epoch)
    write_sbom(exported, out, version)
    if wishes.image:
        try:
            build_image(exported, out, version)
        except ReleaseError as error:
            say(f"no image: {error}")
            missing.append(f"the image ({str(error).splitlines()[0]})")
    for file in wishes.add:
        shutil.copy(file, out)
    write_provenance(out, version, used)
    changelog = (exported / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = write_notes(changelog, version, missing)
    (out / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    write_sums(out)


def make_wheels(
    wishes: Wishes, source: Source, out: Path, work: Path, epoch: int
) -> dict[str, str]:
    """Write all wheels; return which headers each was compiled with."""
    compiler = find_compiler(work / "objects", wishes.jobs)
    wanted = [(python, target) for python in wishes.pythons for target in wishes.targets]
    headers = {  # all of them first: one that is missing must not be found out an hour later
        (python, machine): find_headers(python, machine, wishes.interpreters, work)
        for python in wishes.pythons
        for machine in sorted({target.machine for target in wishes.targets})
    }
    used = {}
    for python, target in wanted:
        began = time.monotonic()
        found = headers[python, target.machine]
        core = compiler.build(source.tree, python, target, found)
        wheel = assemble(source.pure, core, python, target, out, epoch)
        check_platform(wheel, target)
        used[wheel.name] = found.version
        say(f"{wheel.name} ({found.version}, {found.source}; {time.monotonic() - began:.0f} s)")
    return used


def write_provenance(out: Path, version: str, used: dict[str, str]) -> None:
    """Write what decides the bytes of a release: who has the same, makes the same."""
    told = {
        "version": version,
        "commit": run("git", "rev-parse", "HEAD", cwd=ROOT).strip(),
        "python": platform.python_version(),
        "tools": {name: installed(name) for name in ("setuptools", "ziglang")},
        "cpython_headers": used,
    }
    (out / "BUILD.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    wishes = read(arguments)
    with tempfile.TemporaryDirectory(prefix="kvmesh-release-") as work:
        try:
            make(wishes, Path(work))
        except ReleaseError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
