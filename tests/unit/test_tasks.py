import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvmesh.tasks import (
    FATAL,
    GRID_S,
    TASK,
    Jobs,
    attempt,
    end_tasks,
    guarded,
    keep_running,
    near,
    report,
    supervise,
    to_next,
    wait_set,
)
from tests.conftest import Contexts


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses pass at once and are written down."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr("kvmesh.tasks.asyncio.sleep", at_once)
    return slept


def failing(times: int, then: Callable[[], None]) -> Callable[[], Any]:
    left = [times]

    async def work() -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError(left[0])
        then()

    return work


async def test_work_that_raises_is_reported_and_begun_again_after_ever_longer_pauses(
    reported: Contexts, pauses: list[float]
) -> None:
    done: list[bool] = []

    await keep_running("look", failing(7, lambda: done.append(True)))

    assert done == [True]
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    assert [context[TASK] for context in reported] == ["look"] * 7
    assert not any(context[FATAL] for context in reported)
    assert isinstance(reported[0]["exception"], KeyError)


async def test_work_that_ran_for_long_begins_again_soon(
    reported: Contexts, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0], raising=False)
    ran = iter([0.0, 0.0, 100.0])

    async def work() -> None:
        lasted = next(ran, None)
        if lasted is None:
            return
        now[0] += lasted
        raise ValueError("gone")

    await keep_running("look", work)

    assert pauses == [1.0, 2.0, 1.0]
    assert len(reported) == 3


async def test_an_attempt_is_made_once_and_its_fault_reported(reported: Contexts) -> None:
    done: list[bool] = []
    work = failing(1, lambda: done.append(True))

    await attempt("look", work)
    first = list(done)
    await attempt("look", work)

    assert (first, done) == ([], [True])
    assert [context[TASK] for context in reported] == ["look"]


async def test_a_supervised_task_is_cancelled_as_any_other(reported: Contexts) -> None:
    task = supervise("wait", asyncio.Event().wait)  # type: ignore[arg-type]  # its result is unused
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert task.get_name() == "wait"
    assert not reported


async def test_a_task_that_ends_the_process_is_fatal_and_raises_to_who_awaits_it(
    reported: Contexts,
) -> None:
    task = supervise("actors", failing(1, lambda: None), "end")

    with pytest.raises(KeyError):
        await task

    assert [(context[TASK], context[FATAL]) for context in reported] == [("actors", True)]


@pytest.mark.parametrize(("on_error", "fatal"), [("continue", False), ("end", True)])
async def test_a_guarded_callback_never_raises(
    reported: Contexts, on_error: Any, fatal: bool
) -> None:
    def divide(over: int, *, by: int) -> None:
        told.append(over // by)

    told: list[int] = []
    call = guarded("timer", divide, on_error)

    call(6, by=2)
    call(6, by=0)
    call(8, by=2)

    assert told == [3, 4]
    assert [(context[TASK], context[FATAL]) for context in reported] == [("timer", fatal)]


async def test_a_report_says_where_but_is_counted_under_its_name(reported: Contexts) -> None:
    report("subscription", ValueError("odd"), detail="listener on b'kvmesh.hb.code.w1'")

    assert reported[0]["message"] == "listener on b'kvmesh.hb.code.w1'"
    assert reported[0][TASK] == "subscription"


async def test_jobs_are_held_and_what_one_raises_is_reported(reported: Contexts) -> None:
    jobs, done = Jobs("store"), asyncio.Event()

    jobs.start(failing(1, lambda: None)())
    jobs.start(failing(0, done.set)())
    under_way = len(jobs)
    await done.wait()
    await asyncio.sleep(0)

    assert under_way == 2
    assert len(jobs) == 0
    assert [context[TASK] for context in reported] == ["store"]


async def test_closing_gives_up_what_is_under_way(reported: Contexts) -> None:
    jobs, ended = Jobs("store"), asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    jobs.start(wait())
    await asyncio.sleep(0)
    await jobs.close()

    assert ended.is_set()
    assert len(jobs) == 0
    assert not reported


async def test_tasks_end_though_a_cancellation_was_lost(
    reported: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh.tasks.CANCEL_AGAIN_S", 0.01)
    lost: list[bool] = []

    async def loses_one() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.append(True)
        await asyncio.Event().wait()

    task = supervise("keep streams", loses_one)
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("for who awaits it"))
    await asyncio.sleep(0)

    await end_tasks(task, failed)

    assert lost == [True]
    assert task.cancelled()
    assert not reported


async def test_jobs_given_up_before_they_began_leave_nothing(reported: Contexts) -> None:
    jobs = Jobs("store")

    jobs.start(failing(1, lambda: None)())
    await jobs.close()

    assert not reported


@pytest.mark.parametrize("period_s", [0.25, 0.5, 1.0, 3.0])
async def test_loops_of_one_process_wake_up_together(
    monkeypatch: pytest.MonkeyPatch, period_s: float
) -> None:
    times = [1000.0 + step / 7 * period_s for step in range(40)]

    ends: set[float] = set()
    for now in times:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)
        delay_s = to_next(period_s)
        assert 0.1 * period_s < delay_s <= 1.1001 * period_s
        ends.add(round((now + delay_s) % period_s, 6) % period_s)

    assert len(ends) == 1


async def test_a_long_timer_moves_to_the_grid_and_a_short_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: set[float] = set()
    for step in range(40):
        now = 1000.0 + step / 7
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)
        delay_s = near(1.0)
        assert abs(delay_s - 1.0) <= GRID_S / 2 + 1e-9
        ends.add(round((now + delay_s) % GRID_S, 6) % GRID_S)

    assert len(ends) == 1
    assert near(0.1) == 0.1


async def test_an_event_is_waited_for_no_longer_than_said() -> None:
    event = asyncio.Event()

    await wait_set(event, 0.001)

    assert event.is_set()
    await wait_set(event, 60.0)
    event.clear()
    asyncio.get_running_loop().call_soon(event.set)
    await wait_set(event, 60.0)
