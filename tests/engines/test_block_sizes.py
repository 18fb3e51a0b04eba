"""Real engines with blocks of 16, 32 and 64 tokens behind one router: each is predicted exactly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine import SGLANG_BLOCK_SIZE, Engine, sglang_engine, vllm_engine
from tests.engines.processes import eventually, free_ports
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import Comparison, Traffic, compare

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

BLOCKS = 400
REQUESTS = 60
CHANGED = 32
"""The block size that is changed to 64."""


class Fleet:
    """A router alone over an SGLang of 16 tokens a block and a vLLM for each of two sizes."""

    def __init__(self, vllm: Path, sglang: Path, model: Path, directory: Path) -> None:
        self._vllm, self._model, self._directory = vllm, model, directory
        self._ports = {size: self._free() for size in (SGLANG_BLOCK_SIZE, CHANGED, 64)}
        ports, log = self._ports[SGLANG_BLOCK_SIZE], directory / "sglang.log"
        self.engines = {SGLANG_BLOCK_SIZE: sglang_engine(sglang, model, ports, log, blocks=BLOCKS)}
        self.engines |= {size: self.vllm(size, size) for size in (CHANGED, 64)}
        urls = {f"w{number}": one.url for number, one in enumerate(self.engines.values())}
        self.router = RouterAlone(directory, urls, ("--tokenizer", str(model)))
        self._traffic = Traffic(3, 64, VOCABULARY)

    def vllm(self, place: int, size: int) -> Engine:
        """Return a vLLM with blocks of `size` tokens at the ports of another."""
        log, ports = self._directory / f"vllm-{place}-{size}.log", self._ports[place]
        return vllm_engine(self._vllm, self._model, ports, log, blocks=BLOCKS, block_size=size)

    def ask(self) -> list[Comparison]:
        return compare(self.router, self._traffic, REQUESTS, self.status("block_size"))

    def status(self, name: str) -> Any:
        return self.router.http.get(f"{self.router.front_url}/v1/status").json()[name]

    def shows_its_size(self, url: str) -> None:
        """Have the engine that was changed store its first blocks, until the router has seen them:
        a probe after the first of its events tells.
        """
        [worker] = [one["worker"] for one in self.status("workers") if one["url"] == url]
        text = {"model": "tiny", "prompt": "Which size do your blocks have? " * 20, "max_tokens": 2}
        answer = self.router.http.post(
            f"{self.router.front_url}/v1/completions",
            json=text,
            headers={"x-kvmesh-worker-id": worker},
        )
        assert answer.status_code == 200, answer.text
        eventually(
            lambda: self.status("block_sizes") == [16, 64], "its size is seen", within_s=30.0
        )

    def names(self) -> set[str]:
        return {one["worker"] for one in self.status("workers")}

    @staticmethod
    def _free() -> tuple[int, int, int]:
        first, second, third = free_ports(3)
        return first, second, third


@pytest.fixture(scope="module")
def fleet(
    vllm: Path, sglang: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    made = Fleet(vllm, sglang, model, tmp_path_factory.mktemp("sizes"))
    try:
        for engine in made.engines.values():
            engine.start()
        for engine in made.engines.values():
            engine.wait()
        made.router.start()
        made.router.wait_for_trust()
        yield made
    finally:
        made.router.stop()
        for engine in made.engines.values():
            engine.stop()


def missed(made: list[Comparison]) -> list[Comparison]:
    """Return those of which not just what was predicted was reused."""
    return [one for one in made if one.predicted != one.cached]


def reused_at(made: list[Comparison]) -> set[str]:
    """Return the workers that reused anything."""
    return {one.worker for one in made if one.cached}


def test_each_engine_is_predicted_exactly(fleet: Fleet) -> None:
    made = fleet.ask()

    assert (fleet.status("block_size"), fleet.status("block_sizes")) == (16, [16, 32, 64])
    assert missed(made) == []
    assert reused_at(made) == fleet.names()


def test_a_rolling_change_of_the_block_size_costs_nobody_its_exactness(fleet: Fleet) -> None:
    fleet.engines[CHANGED].stop()
    during = fleet.ask()
    fleet.engines[CHANGED] = fleet.vllm(CHANGED, 64)
    fleet.engines[CHANGED].start()
    fleet.engines[CHANGED].wait()
    fleet.router.wait_for_trust()
    fleet.shows_its_size(fleet.engines[CHANGED].url)

    after = fleet.ask()

    assert (missed(during), missed(after)) == ([], [])
    assert reused_at(after) == fleet.names()
