import asyncio

import pytest

from kvmesh.tasks import FATAL, TASK
from kvmesh_lab.mocker.engine import EngineRunner
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, Step
from tests.conftest import Contexts, Eventually


async def test_a_fault_in_a_step_ends_the_process_instead_of_leaving_requests_open(
    eventually: Eventually, reported: Contexts
) -> None:
    def on_step(rank: int, step: Step, seconds: float) -> None:
        del step, seconds
        raise KeyError(rank)

    runner = EngineRunner(0, EngineOptions(), None, on_step)
    runner.submit(EngineRequest("r", [1], 16, 1))

    await eventually(lambda: reported)
    runner.close()

    assert (reported[0][TASK], reported[0][FATAL]) == ("engine step", True)


@pytest.mark.parametrize("times", [1, 2])
async def test_an_engine_that_stopped_takes_no_step(times: int) -> None:
    steps: list[Step] = []
    runner = EngineRunner(0, EngineOptions(), None, lambda _, step, __: steps.append(step))
    runner.submit(EngineRequest("r", [1], 16, 1))

    for _ in range(times):
        runner.close()
    await asyncio.sleep(0.05)

    assert steps == []
