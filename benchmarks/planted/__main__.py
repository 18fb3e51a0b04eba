"""`python -m benchmarks.planted`: plants each fault of `faults.toml`, and runs its tests.

Each is planted alone, in a copy of the tree, where the compiled core is built anew for a fault in
C. Tests that fail without a fault, or a fault whose text is gone, fail the run, as does a share
noticed below 95 %. Tests that run out of time have noticed the fault.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from benchmarks.planted.table import ROOT, Fault, read_faults

WANTED: Final = 0.95
DEADLINE_S: Final = 900.0
"""For tests without a fault. With one they get 5 times what they took without, and 60 s."""

NATIVE: Final = f"kvmesh/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
PYTEST: Final = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")


class Tree:
    """A copy of this tree in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        shutil.copy2(ROOT / NATIVE, folder / NATIVE)

    def run(self, tests: Iterable[str], deadline_s: float = DEADLINE_S) -> bool:
        """Return whether these tests pass in time."""
        paths = f"{self.folder}{os.pathsep}{self.folder / 'benchmarks/lab'}"
        environment = dict(os.environ, PYTHONPATH=paths, HYPOTHESIS_PROFILE="mutants")
        environment |= {"KVMESH_RERUNS": "0", "PYTHONDONTWRITEBYTECODE": ""}
        with (self.folder / "pytest.log").open("wb") as log:
            done = subprocess.run(
                ("timeout", "--kill-after=5", f"{deadline_s:.0f}", *PYTEST, *tests),
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return done.returncode == 0

    def is_noticed(self, fault: Fault, deadline_s: float) -> bool:
        """Plant a fault, run its tests, and take it out again."""
        path, native = self.folder / fault.file, self.folder / NATIVE
        kept, core = path.read_bytes(), native.read_bytes()
        fault.plant(self.folder)
        try:
            if path.suffix == ".c":
                self._build(fault.file)
            return not self.run(fault.tests, deadline_s)
        finally:
            path.write_bytes(kept)
            native.unlink(missing_ok=True)  # not written over: a process may have mapped it
            native.write_bytes(core)

    def _build(self, changed: str) -> None:
        """Compile what was not compiled yet and one file of C, as setup.py does, and link all."""
        settings = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))
        module = settings["tool"]["setuptools"]["ext-modules"][0]
        flags = [*module["extra-compile-args"], *settings["tool"]["kvmesh"]["hardening"]["compile"]]
        flags += [f"-I{one}" for one in (*module["include-dirs"], sysconfig.get_path("include"))]
        build = self.folder / "build"
        build.mkdir(exist_ok=True)
        objects: list[Path] = []
        for number, source in enumerate(module["sources"]):
            objects.append(build / ("changed.o" if source == changed else f"{number}.o"))
            if source == changed or not objects[-1].exists():
                self._compile("-fPIC", "-w", *flags, "-O1", "-c", source, "-o", objects[-1])
        (self.folder / NATIVE).unlink()
        self._compile("-shared", *objects, "-o", NATIVE)

    def _compile(self, *arguments: str | Path) -> None:
        compiler = sysconfig.get_config_var("CC") or "cc"
        subprocess.run((*compiler.split(), *arguments), cwd=self.folder, check=True)


def judge(faults: list[Fault], jobs: int, folder: Path) -> dict[Fault, str]:
    """Return what became of each fault: "noticed", "not noticed" or an error."""
    trees: SimpleQueue[Tree] = SimpleQueue()
    for job in range(jobs):
        trees.put(Tree(folder / str(job)))

    took_s: dict[tuple[str, ...], float] = {}

    def try_one(fault: Fault | tuple[str, ...]) -> str:
        tree, began_s = trees.get(), time.monotonic()
        try:
            if isinstance(fault, tuple):
                found = "" if tree.run(fault) else f"fail without a fault: {' '.join(fault)}"
                took_s[fault] = time.monotonic() - began_s
            else:
                deadline_s = 60.0 + 5.0 * took_s[fault.tests]
                found = "noticed" if tree.is_noticed(fault, deadline_s) else "not noticed"
        except (ValueError, subprocess.CalledProcessError) as error:
            found = f"error: {error}"
        trees.put(tree)
        print(f"{found or 'pass'}, {time.monotonic() - began_s:.0f} s: {fault}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        sets = list(dict.fromkeys(fault.tests for fault in faults))
        clean = dict(zip(sets, pool.map(try_one, sets), strict=True))
        left = [fault for fault in faults if not clean[fault.tests]]
        found = dict(zip(left, pool.map(try_one, left), strict=True))
    return {fault: found.get(fault, clean[fault.tests]) for fault in faults}


def print_rooms(found: dict[Fault, str]) -> None:
    """Print the share noticed of each room as a table, then the faults that were not noticed."""
    print("\n| room | planted | noticed |\n|---|--:|--:|")
    rooms = list(dict.fromkeys(fault.room for fault in found))
    for room in (*rooms, "all of these"):
        results = [one for fault, one in found.items() if fault.room == room or room not in rooms]
        print(f"| {room} | {len(results)} | {results.count('noticed')} |")
    for fault, result in found.items():
        if result != "noticed":
            print(f"{result}: {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.planted", description=__doc__)
    parser.add_argument("--only", nargs="*", help="rooms or files whose names begin so")
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at the same time")
    options = parser.parse_args()
    only = tuple(options.only or ("",))
    faults = [
        one for one in read_faults() if one.room.startswith(only) or one.file.startswith(only)
    ]
    if not faults:
        parser.error(f"--only {' '.join(only)}: no room and no file of the table begins so")
    with tempfile.TemporaryDirectory(prefix="kvmesh-planted-") as folder:
        found = judge(faults, options.jobs, Path(folder))
    print_rooms(found)
    results = list(found.values())
    noticed, missed = results.count("noticed"), results.count("not noticed")
    return int(noticed + missed < len(results) or noticed < WANTED * len(results))


sys.exit(main())
