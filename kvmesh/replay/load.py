"""When each request of a trace is sent: at its time (open loop), or when there is room (closed)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter

from kvmesh.traces.trace import TraceRequest

Chain = Sequence[TraceRequest]
Send = Callable[[TraceRequest, float], Awaitable[object]]
"""Sends a request that was due at a time of `perf_counter`, returns when it has ended.

Not the event loop's clock: uvloop's counts whole milliseconds.
"""


async def send_open_loop(chains: Sequence[Chain], send: Send) -> None:
    """Start each chain at its first request's time, however many are under way.

    A later turn starts `delay_ms` after the turn before it ended; without a delay at its own
    time, but never before that end.
    """
    start = perf_counter()
    async with asyncio.TaskGroup() as group:
        for chain in chains:
            await _sleep_until(start + chain[0].timestamp_ms / 1000)
            group.create_task(_play(chain, start, send))


async def send_closed_loop(chains: Sequence[Chain], concurrency: int, send: Send) -> None:
    """Keep `concurrency` chains under way, in trace order; the trace's times do not matter.

    The think times within a session do: its lane waits them out.
    """
    waiting = iter(chains)

    async def lane() -> None:
        for chain in waiting:
            await _play_at_once(chain, send)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(chains))):
            group.create_task(lane())


async def _play(chain: Chain, start: float, send: Send) -> None:
    for turn, request in enumerate(chain):
        due = start + request.timestamp_ms / 1000
        if turn:
            now = perf_counter()
            due = max(due, now) if request.delay_ms is None else now + request.delay_ms / 1000
            await _sleep_until(due)
        await send(request, due)


async def _play_at_once(chain: Chain, send: Send) -> None:
    for turn, request in enumerate(chain):
        due = perf_counter() + ((request.delay_ms or 0.0) / 1000 if turn else 0.0)
        await _sleep_until(due)
        await send(request, due)


async def _sleep_until(due: float) -> None:
    """Sleep to `due`; at once past it, without giving up the turn to a burst's other tasks."""
    wait = due - perf_counter()
    if wait > 0:
        await asyncio.sleep(wait)
