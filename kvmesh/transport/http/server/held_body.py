"""Work on a request's body in a thread: it counts in the budget until the thread is done."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

from kvmesh.transport.http.server.request import Request

Result = TypeVar("Result")


async def run_holding(executor: Executor, request: Request, work: Callable[[], Result]) -> Result:
    """Return what `work` returns, which reads the body of `request` in a thread of `executor`.

    A thread cannot be ended: one whose client has left reads on, and holds the body meanwhile.
    Work that has not begun is given up.
    """
    loop = asyncio.get_running_loop()

    def done(_: "Future[Result]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(request.let_go)

    future = executor.submit(work)
    request.hold()
    future.add_done_callback(done)
    try:
        return await asyncio.wrap_future(future)
    finally:
        del future  # an error in it has this frame, which would hold both, and the body
