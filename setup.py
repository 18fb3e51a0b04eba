"""What pyproject.toml cannot say of a build: when it is for one platform, and its description.

`KVMESH_BUILD_CORE=off` builds a wheel without the compiled core, which does not run: the release
puts in the cores that it compiled for each system. Without a C compiler zig's is taken, which
deploy/build_backend/backend.py asks PyPI for.
"""

import os
import re
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

sys.path.insert(0, str(Path(__file__).with_name("deploy") / "build_backend"))
from backend import find_compiler

WISH = os.environ.get("KVMESH_BUILD_CORE", "required")
TREE = "https://github.com/kvmesh/kvmesh/blob/main/"
IMAGES = "https://raw.githubusercontent.com/kvmesh/kvmesh/main/"

if WISH not in {"required", "off"}:
    raise SystemExit(f"KVMESH_BUILD_CORE={WISH}: must be required or off")

with Path(__file__).with_name("pyproject.toml").open("rb") as _file:
    SETTINGS = tomllib.load(_file)["tool"]["kvmesh"]


class Core(build_ext):
    """The compiled core."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if WISH == "off":
            self.extensions = []

    def build_extensions(self) -> None:
        """Compile by this machine's compiler, else by zig. Raises `PlatformError`: no headers."""
        headers = Path(sysconfig.get_path("include"), "Python.h")
        if not headers.is_file():
            raise PlatformError(
                f"no {headers}: this Python has no headers to build kvmesh with; install them "
                "(Debian, Ubuntu: apt install python3-dev), or a wheel of kvmesh"
            )
        if find_compiler() is None:
            self.take_zig()
        self.compile_at_once()
        compiling, linking = self.known_hardening()
        for module in self.extensions:
            module.extra_compile_args = [*module.extra_compile_args, *compiling]
            module.extra_link_args = [*module.extra_link_args, *linking]
        super().build_extensions()

    def compile_at_once(self) -> None:
        """Compile as many sources at a time as there are processors."""
        one_by_one = self.compiler.compile

        def compile_all(sources: list[str], *given: Any, **named: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda one: one_by_one([one], *given, **named), sources)
                return [path for each in made for path in each]

        self.compiler.compile = compile_all

    def take_zig(self) -> None:
        """Compile by the clang of ziglang."""
        if find_spec("ziglang") is None:
            raise PlatformError(
                "no C compiler to build kvmesh with: install gcc, or `pip install ziglang` where "
                "builds are not isolated"
            )
        zig = [sys.executable, "-m", "ziglang", "cc", *SETTINGS["zig"]["compile"]]
        self.compiler.set_executables(compiler_so=zig, linker_so=[*zig, "-shared"])

    def known_hardening(self) -> tuple[list[str], list[str]]:
        """Return what this compiler knows of the hardening flags of pyproject.toml."""
        wanted = SETTINGS["hardening"]
        compiling, linking = wanted["compile"], wanted["link"]
        if not self.extensions or self.builds(compiling, linking):
            return compiling, linking
        return (
            [one for one in compiling if self.builds([one], [])],
            [one for one in linking if self.builds([], [one])],
        )

    def builds(self, compiling: list[str], linking: list[str]) -> bool:
        """Return whether a library builds with these flags, without a warning."""
        with tempfile.TemporaryDirectory(prefix="kvmesh-flags-") as folder:
            source = Path(folder, "flags.c")
            source.write_text("int flags(int n) { return n + 1; }\n", encoding="utf-8")
            strict = ["-O2", "-Werror", *compiling]
            try:
                made = self.compiler.compile([str(source)], folder, extra_postargs=strict)
                self.compiler.link_shared_object(made, f"{folder}/flags.so", extra_postargs=linking)
            except CCompilerError:
                return False
        return True


class Wheel(bdist_wheel):
    """A wheel is for a platform only if it has the compiled core."""

    def run(self) -> None:
        self.run_command("build")
        built = Path(self.get_finalized_command("build").build_lib)
        self.root_is_pure = not any(built.glob("kvmesh/_native*.so"))
        super().run()


def description() -> str:
    """Return README.md with links that lead somewhere from a package index, too."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\(|<img [^>]*src=\")(?![a-z]+:|#)", rf"\1{IMAGES}", text)
    return re.sub(r"(\]\()(?![a-z]+:|#)", rf"\1{TREE}", text)


setup(
    cmdclass={"bdist_wheel": Wheel, "build_ext": Core},
    long_description=description(),
    long_description_content_type="text/markdown",
)
