"""Put on SGLang's path: packages of CUDA code that it imports, and on a CPU never calls."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

PACKAGES = ("sgl_kernel", "torchvision")


class Absent:
    """Anything in such a package; calling it fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **named: object) -> NoReturn:
        raise NotImplementedError(f"{self._name}({args}, {named}): not on this machine")

    def __getattr__(self, name: str) -> "Absent":
        return find(self._name, name)


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages and every module in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        # Transformers asks for torchvision's version.
        vars(module).update(
            __version__="0.26.0", __getattr__=lambda attribute: find(name, attribute)
        )


def find(name: str, attribute: str) -> Absent:
    """Return what stands for `attribute` of `name`. Raises `AttributeError` for a dunder."""
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return Absent(f"{name}.{attribute}")


sys.meta_path.append(AbsentPackages())
