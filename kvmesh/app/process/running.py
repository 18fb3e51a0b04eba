"""One process: event loop, signals, limits. Every long-running command ends here."""

import asyncio
import ctypes
import gc
import os
import signal
from collections.abc import Awaitable, Callable

import uvloop

from kvmesh.app.process.internal_errors import InternalErrors
from kvmesh.app.process.memory import give_back_memory, tune_allocator
from kvmesh.tasks import end_tasks, keep_running
from kvmesh.transport.http.wire.sockets import raise_open_files_limit

PR_SET_PDEATHSIG = 1
DIE_WITH_PARENT = "KVMESH_DIE_WITH_PARENT"
EXIT_FORCED = 130
GC_THRESHOLDS = (5000, 10, 10)
"""So that 64 requests in flight are not looked through as if they were garbage, which they never
become; a young collection takes 0.7 ms, once in 1,500 short requests.
"""


END_S = 10.0
"""So long what serves may take to end by itself after a fatal error."""


class Stop:
    """Set once, by SIGTERM or SIGINT (or a test): the process shall drain and end.

    `errors` counts what nobody handled; one that is fatal ends the process, too.
    """

    def __init__(self) -> None:
        self.errors = InternalErrors()
        self._event = asyncio.Event()

    @property
    def requested(self) -> bool:
        """Return whether the process shall end."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask the process to end; safe to call again."""
        self._event.set()

    async def wait(self) -> None:
        """Return when the process shall end."""
        await self._event.wait()


def run(main: Callable[[Stop], Awaitable[None]]) -> None:
    """Run `main` on uvloop until it returns; SIGTERM and SIGINT set its `Stop`.

    A second signal ends the process at once, whatever still hangs. Raises what `main` raises, and
    the error that a task or callback of its own reported as fatal.
    """
    if os.environ.get(DIE_WITH_PARENT):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    raise_open_files_limit()
    tune_allocator()
    # What was loaded stays for good: not for the collector to walk over again and again.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_with_signals(main))


async def _with_signals(main: Callable[[Stop], Awaitable[None]]) -> None:
    stop = Stop()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(stop.errors.handle)

    def on_signal() -> None:
        if stop.requested:
            os._exit(EXIT_FORCED)
        stop.request()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    memory = asyncio.ensure_future(keep_running("memory", give_back_memory))
    try:
        await _or_fatal(main(stop), stop.errors)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await end_tasks(memory)


async def _or_fatal(serving: Awaitable[None], errors: InternalErrors) -> None:
    """Wait for `serving`; raise the error that ends the process, after it had time to end well."""
    main, ending = asyncio.ensure_future(serving), asyncio.ensure_future(errors.wait_fatal())
    try:
        await asyncio.wait({main, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            await asyncio.wait({main}, timeout=END_S)
        if main.done():
            main.result()
    finally:
        await end_tasks(main, ending)
    if errors.fatal is not None:
        raise errors.fatal


async def first_of(*works: Awaitable[None]) -> None:
    """Return when the first of `works` ends, cancel the others, raise what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end_tasks(*tasks)
