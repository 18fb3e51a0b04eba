"""The search in a process of its own: real processes."""

import asyncio
import sys
from array import array

import pytest

from kvmesh.app.router import search_child
from kvmesh.app.router.search_child import SearchChild
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.trace_ring import Traced, TraceRow
from kvmesh.core.insight.tuning_loop import Search
from kvmesh.core.insight.weight_search import SearchTask, SimulatedFleetFacts
from kvmesh.errors import TransportError
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

FACTS = SimulatedFleetFacts((1.0, 1.0), 16, 16.0, 0.02)
WEIGHTS = {"overlap_score_weight": 1.0}


def search(requests: int = 80) -> Search:
    rows = [
        TraceRow(
            number / 10, number / 10 + 1.0, 300, 20, WorkerId("w"),
            Traced(0, array("Q", (number % 9, number + 100)).tobytes()),
        )
        for number in range(requests)
    ]  # fmt: skip
    return Search(SearchTask("prefill-decode", WEIGHTS, WEIGHTS, FACTS, 128, seconds=0.5), rows)


def script(text: str) -> SearchChild:
    return SearchChild(("-c", text))


async def test_a_search_runs_in_a_process_of_the_lowest_priority() -> None:
    found = await SearchChild().run(search())

    assert found.requests == 80
    assert found.default.weights == WEIGHTS


async def test_what_it_says_on_its_end_is_passed_on() -> None:
    with pytest.raises(TransportError, match="code 2: kvmesh: 3 requests are too few"):
        await SearchChild().run(search(3))


async def test_one_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_child, "LEAST_S", 0.2)
    monkeypatch.setattr(search_child, "GRACE", 0.1)

    with pytest.raises(TransportError, match="more than 0 s"):
        await script("import time; time.sleep(60)").run(search())


async def test_one_that_answers_nonsense_is_told() -> None:
    with pytest.raises(TransportError, match="cannot be read"):
        await script("import sys; sys.stdin.read(); print('[]')").run(search())


async def test_one_that_ends_without_reading_is_told() -> None:
    with pytest.raises(TransportError, match="code 7: no word"):
        await script("import os; os._exit(7)").run(search(3000))


async def test_one_that_is_given_up_ends_at_once(eventually: Eventually) -> None:
    child = script("import time; time.sleep(60)")
    child.kill()
    running = asyncio.ensure_future(child.run(search()))
    await eventually(lambda: child._process is not None)
    with pytest.raises(TransportError, match="has not ended"):
        await child.run(search())
    child.kill()

    with pytest.raises(TransportError, match="code -9"):
        await running


async def test_a_python_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with pytest.raises(TransportError, match="no process for it"):
        await SearchChild().run(search())
