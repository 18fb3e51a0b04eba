"""The kinds of engines whose reuse is compared with predictions, each with a tiny model."""

from pathlib import Path
from typing import Final, Protocol

import msgspec

from tests.engines.engine import (
    SGLANG_BLOCK_SIZE,
    VLLM_BLOCK_SIZE,
    Engine,
    sglang_engine,
    vllm_engine,
)
from tests.engines.engine_venv import SGLANG, VLLM, EngineVenv
from tests.engines.tiny_model import GEMMA3, LFM2, QWEN3, Config

CACHED_TOKENS: Final = 3104
"""Cached at most by an engine with full attention alone."""


class Start(Protocol):
    """Makes an engine."""

    def __call__(
        self, python: Path, model: Path, ports: tuple[int, int, int], log: Path, *, blocks: int
    ) -> Engine:
        """Return the engine, not started yet; see `vllm_engine`."""
        ...


class Kind(msgspec.Struct, frozen=True):
    """A kind of engine with a model. `blocks` are those of all its groups.

    After enough requests each engine holds `held` blocks of full attention, at least and at most.
    """

    name: str
    venv: EngineVenv
    model: Config
    start: Start
    block_size: int
    blocks: int
    held: tuple[int, int]

    @property
    def title(self) -> str:
        """Return what it is called in tables."""
        return f"{self.venv.engine} {self.venv.version}, {self.name}"


def _plain(name: str, venv: EngineVenv, start: Start, block_size: int) -> Kind:
    blocks = CACHED_TOKENS // block_size
    return Kind(name, venv, QWEN3, start, block_size, blocks, (blocks // 2 + 1, blocks))


KINDS: Final = {
    kind.name: kind
    for kind in (
        _plain("Qwen3", VLLM, vllm_engine, VLLM_BLOCK_SIZE),
        Kind("Gemma 3", VLLM, GEMMA3, vllm_engine, VLLM_BLOCK_SIZE, 400, (50, 250)),
        Kind("LFM2", VLLM, LFM2, vllm_engine, VLLM_BLOCK_SIZE, 130, (40, 129)),
    )
} | {"SGLang": _plain("Qwen3", SGLANG, sglang_engine, SGLANG_BLOCK_SIZE)}
"""Full attention, sliding windows in five of six layers, short convolutions as mamba states."""
