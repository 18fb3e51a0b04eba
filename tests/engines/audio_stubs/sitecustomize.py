"""Stands for torchvision, whose published wheels need CUDA: vLLM's Qwen3-ASR imports modules of
other models that do, and never calls it for audio.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

STANDS_FOR = "torchvision"
IMAGES = "transformers.models.qwen2_vl.image_processing_qwen2_vl"


class Anything:
    """A function or a constant."""

    def __call__(self, *_: object, **__: object) -> None:
        return None

    def __getattr__(self, name: str) -> "Anything":
        return Anything()


class Named(type):
    """A class that has every constant."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class StandIn(ModuleType):
    """A module that has every name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = list[str]()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (), {}) if name[0].isupper() else Anything()


class Finder:
    """Finds them."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] == STANDS_FOR or name == IMAGES:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


sys.meta_path.insert(0, Finder())
