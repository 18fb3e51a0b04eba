"""Asks over HTTP the members that an actor no longer hears."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from kvmesh.actors.asking import Answered
from kvmesh.app.care.prober import Probe, Prober
from kvmesh.core.health.health import Answer
from kvmesh.runtime.aio import AioDriver
from kvmesh.transport.http.upstream.client import UpstreamPool


def watch_silence(
    stack: contextlib.AsyncExitStack,
    driver: AioDriver,
    actor: str,
    pool: UpstreamPool,
    due: Callable[[float], Sequence[Probe]],
) -> asyncio.Task[None]:
    """Send the probes that are `due` and tell `actor` what came of them, until `stack` ends.

    The result ends only by a fault; `pool` is closed with it.
    """

    def tell(member: str, answer: Answer, now: float) -> None:
        del now
        driver.post(actor, Answered(member, answer))

    async def stop() -> None:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await pool.close()

    watching = asyncio.create_task(
        Prober(pool, due, tell, time.monotonic).run(), name="ask silent members"
    )
    stack.push_async_callback(stop)
    return watching
