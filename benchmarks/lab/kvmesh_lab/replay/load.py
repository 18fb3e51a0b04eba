"""When each request of a trace is sent: at its time (open loop), or when there is room (closed)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from kvmesh_lab.traces.trace import TraceRequest

Chain = Sequence[TraceRequest]
Send = Callable[[TraceRequest, float], Awaitable[object]]
"""Sends a request that was due at a time of `perf_counter`, returns when it has ended.

Not the event loop's clock: uvloop's counts whole milliseconds.
"""


async def send_open_loop(chains: Sequence[Chain], send: Send) -> None:
    """Start each chain at its first request's time, however many are under way.

    A later turn starts `delay_ms` after the turn before it ended; without a delay at its own
    time, but never before that end. A sub-agent's chain starts behind its parent's turn.
    """
    start = perf_counter()
    ends = _Ends(chains, send)
    async with asyncio.TaskGroup() as group:
        for chain in chains:
            if ends.before(chain[0]) is None:
                await _sleep_until(start + chain[0].timestamp_ms / 1000)
            group.create_task(_play(chain, start, ends))


async def send_closed_loop(chains: Sequence[Chain], concurrency: int, send: Send) -> None:
    """Keep `concurrency` programs under way, in trace order; the trace's times do not matter.

    A program is a session's chain with those of its sub-agents. The think times within it do
    matter: its lane waits them out.
    """
    programs: dict[str | int, list[Chain]] = {}
    for chain in chains:
        programs.setdefault(chain[0].program or chain[0].index, []).append(chain)
    waiting = iter(programs.values())
    ends = _Ends(chains, send)

    async def lane() -> None:
        for members in waiting:
            async with asyncio.TaskGroup() as group:
                for chain in members:
                    group.create_task(_play(chain, None, ends))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(programs))):
            group.create_task(lane())


class _Ends:
    """Sends requests, and tells the ends of those that sub-agents wait for."""

    def __init__(self, chains: Sequence[Chain], send: Send) -> None:
        sent = {request.index for chain in chains for request in chain}
        self._ended = {
            after: asyncio.Event()
            for chain in chains
            if (after := chain[0].after) is not None and after in sent
        }
        self._send = send

    def before(self, request: TraceRequest) -> asyncio.Event | None:
        """Return the end of another chain's request that comes first, None for none."""
        return None if request.after is None else self._ended.get(request.after)

    async def send(self, request: TraceRequest, due_s: float) -> None:
        """Send a request; return when it has ended, however it did."""
        try:
            await self._send(request, due_s)
        finally:
            if (ended := self._ended.get(request.index)) is not None:
                ended.set()


async def _play(chain: Chain, start: float | None, ends: _Ends) -> None:
    """Send the turns of a chain in a row; `start` None: recorded times do not matter."""
    for turn, request in enumerate(chain):
        follows = turn > 0
        if not turn and (first := ends.before(request)) is not None:
            await first.wait()
            follows = True
        now = perf_counter()
        due = now if start is None else start + request.timestamp_ms / 1000
        if follows:
            due = max(due, now) if request.delay_ms is None else now + request.delay_ms / 1000
            await _sleep_until(due)
        await ends.send(request, due)


async def _sleep_until(due: float) -> None:
    """Sleep to `due`; at once past it, without giving up the turn to a burst's other tasks."""
    wait = due - perf_counter()
    if wait > 0:
        await asyncio.sleep(wait)
