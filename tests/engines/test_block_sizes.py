"""Real engines with blocks of 16, 32 and 64 tokens behind one router: each is predicted exactly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine import SGLANG_BLOCK_SIZE, Engine, sglang_engine, vllm_engine
from tests.engines.processes import eventually, free_ports
from tests.engines.reuse.alone import RouterAlone
from tests.engines.tiny_model import VOCABULARY
from tests.engines.traffic import Comparison, Sent, Traffic, ask, compare

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

    def ask_again(self, url: str) -> Comparison:
        """Send the engine at `url` a prompt of its own twice; return what became of the second."""
        [worker] = [one["worker"] for one in self.status("workers") if one["url"] == url]
        self.router.http.headers["x-kvmesh-worker-id"] = worker
        text = f"Which size do the blocks of {url} have? " * 20
        sent = ("completion", "/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 2})
        try:
            return [self._ask_settled(sent) for _ in range(2)][1]
        finally:
            del self.router.http.headers["x-kvmesh-worker-id"]

    def _ask_settled(self, sent: Sent) -> Comparison:
        self.router.settle()
        return ask(self.router, self.router.front_url, sent, self.status("block_size"))

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


def test_each_engine_is_predicted_exactly(fleet: Fleet) -> None:
    made = fleet.ask()

    assert (fleet.status("block_size"), fleet.status("block_sizes")) == (16, [16, 32, 64])
    again = [fleet.ask_again(one.url) for one in fleet.engines.values()]

    assert missed([*made, *again]) == []
    assert all(one.cached > 64 for one in again)


def test_a_rolling_change_of_the_block_size_costs_nobody_its_exactness(fleet: Fleet) -> None:
    fleet.engines[CHANGED].stop()
    during = fleet.ask()
    fleet.engines[CHANGED] = fleet.vllm(CHANGED, 64)
    fleet.engines[CHANGED].start()
    fleet.engines[CHANGED].wait()
    fleet.router.wait_for_trust()
    # A probe after the first of its events tells the size.
    fleet.ask_again(fleet.engines[CHANGED].url)
    eventually(lambda: fleet.status("block_sizes") == [16, 64], "the size is seen", within_s=30.0)

    after = fleet.ask()
    again = [fleet.ask_again(one.url) for one in fleet.engines.values()]

    assert (missed(during), missed([*after, *again])) == ([], [])
    assert all(one.cached > 64 for one in again)
