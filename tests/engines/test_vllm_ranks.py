"""A real vLLM with two data-parallel ranks: each is a worker of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.engine import VLLM_BLOCK_SIZE, vllm_engine
from tests.engines.engine_venv import VLLM
from tests.engines.processes import free_ports
from tests.engines.reuse.report import Report
from tests.engines.stack import Plan, Stack, running

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

BLOCKS = 97


@pytest.fixture(scope="module")
def stack(
    vllm: Path, model: Path, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm-ranks")
    port, events, replay = free_ports(3)
    log = directory / "engine.log"
    engine = vllm_engine(vllm, model, (port, events, replay), log, blocks=BLOCKS, ranks=2)
    workers = ["vllm-dp0", "vllm-dp1"]
    kind = f"vllm {VLLM.version}, Qwen3"
    plan = Plan(kind, {"vllm": engine}, workers, model, VLLM_BLOCK_SIZE, (0, BLOCKS))
    with running(directory, plan, report) as stack:
        yield stack


def test_each_rank_is_routed_to_by_its_own_cache(stack: Stack) -> None:
    share = stack.measure("two ranks of one engine", 120)
    stack.mesh.settle()

    held = stack.mesh.blocks()
    assert share >= 0.99
    assert held[0] == held[1]
    assert all(held[0][rank] > BLOCKS // 2 for rank in stack.plan.workers)
