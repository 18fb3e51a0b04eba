"""The rule for all that runs as long as its process: no exception ends it in silence.

What is raised is reported to the event loop's exception handler, which `app.process.running` sets:
it logs the name and the traceback and counts `kvmesh_internal_errors_total`. Then the work goes on,
after a pause that grows, or the process ends with a non-zero code.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, ParamSpec

PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 5.0
CANCEL_AGAIN_S: Final = 10.0
STEADY_S: Final = 60.0
"""Work that ran for so long begins again after the shortest pause."""

GRID_S: Final = 0.25
_EARLY: Final = 0.1

TASK: Final = "kvmesh_task"
FATAL: Final = "kvmesh_fatal"
"""Keys of a report's context: the name to count under, and whether the process shall end."""

OnError = Literal["continue", "end"]
Work = Callable[[], Coroutine[Any, Any, None]]
P = ParamSpec("P")


def report(name: str, error: Exception, *, detail: str = "", fatal: bool = False) -> None:
    """Tell the event loop's exception handler what `name` did not handle.

    `name` is one of few words, since it is a metric's label; `detail` is for the log alone.
    """
    context = {"message": detail or f"{name} failed", "exception": error, TASK: name, FATAL: fatal}
    asyncio.get_running_loop().call_exception_handler(context)


async def keep_running(name: str, work: Work) -> None:
    """Run `work` to its end; if it raises, that is reported and it begins again after a pause."""
    loop, pause_s = asyncio.get_running_loop(), PAUSE_S
    while True:
        began_s = loop.time()
        try:
            await work()
        except Exception as error:  # noqa: BLE001  the rule: reported, and it goes on
            report(name, error)
        else:
            return
        if loop.time() - began_s > STEADY_S:
            pause_s = PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


async def attempt(name: str, work: Work) -> None:
    """Run `work` once; what it raises is reported: one of many must not end the others."""
    try:
        await work()
    except Exception as error:  # noqa: BLE001  the rule: reported, and the others go on
        report(name, error)


def supervise(name: str, work: Work, on_error: OnError = "continue") -> asyncio.Task[None]:
    """Return a task that runs `work`; keep it, or the collector may end it.

    "end": what it raises is reported, raised to who awaits the task, and ends the process.
    """
    running = keep_running(name, work) if on_error == "continue" else _or_end(name, work)
    return asyncio.get_running_loop().create_task(running, name=name)


def guarded(
    name: str, callback: Callable[P, None], on_error: OnError = "continue"
) -> Callable[P, None]:
    """Return `callback` for a timer, a reader or a listener: what it raises is reported.

    The caller goes on as if it had returned; "end": the process ends.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  the rule: reported, and the caller goes on
            report(name, error, fatal=on_error == "end")

    return call


class Jobs:
    """Tasks that end by themselves: held until then, and what one raises is reported."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` from the next turn of the loop on."""
        task = asyncio.get_running_loop().create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Give up everything under way."""
        await end_tasks(*self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            report(self._name, error)


def to_next(period_s: float) -> float:
    """Return the seconds until the event loop's clock shows a multiple of `period_s`: 0.1 to 1.1
    periods.

    Loops that sleep so wake up together: a process at rest wakes up for all of them at once, not
    for each.
    """
    left_s = period_s - asyncio.get_running_loop().time() % period_s
    return left_s if left_s > _EARLY * period_s else left_s + period_s


def near(delay_s: float) -> float:
    """Return a delay that ends at a multiple of `GRID_S`, at most half of it from `delay_s`: for
    timers of 0.25 s and more that are to go off together, with those of `to_next`.
    """
    if delay_s < GRID_S:
        return delay_s
    off_s = (asyncio.get_running_loop().time() + delay_s) % GRID_S
    return delay_s - off_s if off_s <= GRID_S / 2 else delay_s - off_s + GRID_S


async def wait_set(event: asyncio.Event, timeout_s: float) -> None:
    """Return when `event` is set, after `timeout_s` at the latest: then it is set, too.

    For a loop that runs as long as its process: `wait_for` makes a task each time.
    """
    if event.is_set():
        return
    timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def end_tasks(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel the tasks and return when all have ended; what they raise is for who awaits them.

    They are asked again after 10 s: the `wait_for` of Python 3.11 forgets a cancellation that
    comes together with its result.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _or_end(name: str, work: Work) -> None:
    try:
        await work()
    except Exception as error:
        report(name, error, fatal=True)
        raise
