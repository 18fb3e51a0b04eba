import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvmesh.transport.http.server.held_body import run_holding
from kvmesh.transport.http.server.limits import BodyBudget
from kvmesh.transport.http.server.request import Request
from tests.conftest import Eventually


def charged(size: int = 100) -> tuple[Request, BodyBudget]:
    request, budget = Request("POST", b"/", [], bytes(size)), BodyBudget(1000)
    request.budget = budget
    budget.used = size
    return request, budget


def test_a_body_counts_until_the_last_who_holds_it_lets_go() -> None:
    request, budget = charged()
    request.hold()
    request.hold()

    request.release_body()
    request.uncharge()
    assert (budget.used, request.body) == (100, b"")
    request.let_go()
    assert budget.used == 100
    request.let_go()

    assert budget.used == 0
    request.uncharge()
    assert budget.used == 0


def test_a_body_let_go_of_before_its_request_ends_counts_until_then() -> None:
    request, budget = charged()
    request.hold()
    request.let_go()
    assert budget.used == 100

    request.uncharge()
    request.uncharge()

    assert budget.used == 0


async def test_a_thread_holds_the_body_though_its_client_is_gone(eventually: Eventually) -> None:
    request, budget = charged()
    begun, go_on = threading.Event(), threading.Event()

    def read() -> int:
        begun.set()
        go_on.wait(30)
        return len(request.body)

    with ThreadPoolExecutor(1) as threads:
        reading = asyncio.create_task(run_holding(threads, request, read))
        await eventually(begun.is_set)
        waiting, waiting_budget = charged()
        second = asyncio.create_task(run_holding(threads, waiting, read))
        await asyncio.sleep(0)
        for task, one in ((reading, request), (second, waiting)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            one.uncharge()

        await eventually(lambda: waiting_budget.used == 0, what="given up before it began")
        assert budget.used == 100
        go_on.set()
        await eventually(lambda: budget.used == 0)


async def test_what_the_work_raises_is_raised_and_the_body_let_go(eventually: Eventually) -> None:
    request, budget = charged()

    def read() -> None:
        raise ValueError("no JSON")

    with ThreadPoolExecutor(1) as threads, pytest.raises(ValueError, match="no JSON"):
        await run_holding(threads, request, read)
    await eventually(lambda: not request.holders)
    request.uncharge()

    assert budget.used == 0
    with pytest.raises(RuntimeError):
        await run_holding(threads, request, read)
    assert not request.holders
