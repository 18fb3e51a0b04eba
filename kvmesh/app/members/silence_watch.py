"""Asks over HTTP the members that an actor no longer hears."""

import contextlib
import time
from collections.abc import Callable, Sequence

from kvmesh.actors.member_messages import Answered
from kvmesh.app.members.prober import Probe, Prober
from kvmesh.app.process.aio import AioDriver
from kvmesh.core.members.health import Answer
from kvmesh.tasks import end_tasks, supervise
from kvmesh.transport.http.upstream.client import UpstreamPool


def watch_silence(
    stack: contextlib.AsyncExitStack,
    driver: AioDriver,
    actor: str,
    pool: UpstreamPool,
    due: Callable[[float], Sequence[Probe]],
) -> None:
    """Send the probes that are `due` and tell `actor` what came of them, until `stack` ends.

    `pool` is closed then.
    """

    def report(member: str, answer: Answer, now: float) -> None:
        del now
        driver.post(actor, Answered(member, answer))

    async def stop() -> None:
        await end_tasks(watching)
        await pool.close()

    watching = supervise("ask silent members", Prober(pool, due, report, time.monotonic).run)
    stack.push_async_callback(stop)
