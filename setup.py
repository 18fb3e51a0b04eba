"""What pyproject.toml cannot say of a build: when it is for one platform, and its description.

`KVMESH_BUILD_CORE` is `optional` (the default: without a compiler the pure core is built),
`required` (a compiled core that fails, fails the build) or `off`.
"""

import os
import re
import tempfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

WISH = os.environ.get("KVMESH_BUILD_CORE", "optional")
TREE = "https://github.com/kvmesh/kvmesh/blob/main/"
IMAGES = "https://raw.githubusercontent.com/kvmesh/kvmesh/main/"

if WISH not in {"optional", "required", "off"}:
    raise SystemExit(f"KVMESH_BUILD_CORE={WISH}: must be optional, required or off")


class Core(build_ext):
    """The compiled core, as `KVMESH_BUILD_CORE` wishes."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if WISH == "off":
            self.extensions = []
        for module in self.extensions:
            module.optional = WISH == "optional"

    def build_extensions(self) -> None:
        compiling, linking = self.known_hardening()
        for module in self.extensions:
            module.extra_compile_args = [*module.extra_compile_args, *compiling]
            module.extra_link_args = [*module.extra_link_args, *linking]
        super().build_extensions()

    def known_hardening(self) -> tuple[list[str], list[str]]:
        """Return what this compiler knows of the hardening flags of pyproject.toml."""
        settings = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text("utf-8"))
        wanted = settings["tool"]["kvmesh"]["hardening"]
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
        self.root_is_pure = not any(built.glob("kvmesh/_native*"))
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
