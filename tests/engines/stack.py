"""Engines and a mesh over them, and the rows of the report."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.engines.mesh import EngineMesh
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import Traffic, compare, exact_share, table_row
from tests.engines.vllm_engine import BLOCK_SIZE, VllmEngine

HEADER = """
| vLLM 0.32.0 | requests | exact | too much | too little | tokens reused | with reuse |
|---|---|---|---|---|---|---|"""


class Stack(msgspec.Struct):
    """All that runs. `workers` are the names the engines' sidecars give themselves."""

    model: Path
    engines: dict[str, VllmEngine]
    mesh: EngineMesh
    workers: list[str]
    traffic: Traffic
    rows: list[str]

    def measure(self, name: str, count: int) -> float:
        """Return the share of exact predictions of `count` requests, and report it."""
        made = compare(self.mesh, self.traffic, count, BLOCK_SIZE)
        self.rows.append(table_row(name, made))
        return exact_share(made)


@contextlib.contextmanager
def running(
    directory: Path, model: Path, engines: dict[str, VllmEngine], workers: list[str]
) -> Iterator[Stack]:
    """Start all of it, wait until the replicas trust `workers`; print the report at the end."""
    urls = {name: engine.url for name, engine in engines.items()}
    mesh = EngineMesh(directory, urls, model, block_size=BLOCK_SIZE)
    rows: list[str] = []
    try:
        for engine in engines.values():
            engine.start()
        for engine in engines.values():
            engine.wait()
        mesh.start()
        mesh.wait_for_trust(workers)
        yield Stack(model, engines, mesh, workers, Traffic(1, BLOCK_SIZE, VOCABULARY), rows)
    finally:
        mesh.stop()
        for engine in engines.values():
            engine.stop()
        print("\n".join([HEADER, *rows]))  # noqa: T201 - the report is the point
