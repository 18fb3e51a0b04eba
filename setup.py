"""What pyproject.toml cannot say of a build: when it is for one platform, and its description.

`KVMESH_BUILD_CORE` is `optional` (the default: without a compiler the pure core is built),
`required` (a compiled core that fails, fails the build) or `off`.
"""

import os
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

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
