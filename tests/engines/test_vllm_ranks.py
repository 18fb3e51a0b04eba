"""A real vLLM with two data-parallel ranks: each is a worker of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.processes import free_ports
from tests.engines.stack import Stack, running
from tests.engines.vllm_engine import VllmEngine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stack(python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm-ranks")
    port, events, replay = free_ports(3)
    log = directory / "engine.log"
    engine = VllmEngine(python, model, (port, events, replay), log, blocks=97, ranks=2)
    with running(directory, model, {"vllm": engine}, ["vllm-dp0", "vllm-dp1"]) as stack:
        yield stack


def test_each_rank_is_routed_to_by_its_own_cache(stack: Stack) -> None:
    share = stack.measure("two ranks of one engine", 120)

    held = stack.mesh.blocks()
    assert share >= 0.99
    assert held[0] == held[1]
    assert all(held[0][rank] > 48 for rank in stack.workers)
