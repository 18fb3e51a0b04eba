"""The bindings of sessions in a shared table: known to a bucket's replicas, kept over restarts."""

import asyncio
import contextlib
import time
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.sessions import Sessions
from kvmesh.observe import get_logger
from kvmesh.ports import SharedTable
from kvmesh.tasks import supervise

TELL_EVERY_S: Final = 0.02
"""A session's next request comes long after: what comes so soon after the first news is told with
it.
"""

READ_S: Final = 10.0
"""How long a start waits for the bindings of before."""


class SessionStore:
    """Tells the store of this replica's bindings, and `sessions` of all replicas'."""

    def __init__(self, sessions: Sessions, table: SharedTable) -> None:
        self._sessions = sessions
        self._table = table
        self._caught_up = asyncio.Event()
        self._woken = asyncio.Event()
        sessions.on_news = self._woken.set
        self._stack = contextlib.AsyncExitStack()
        self._log = get_logger()

    async def start(self) -> None:
        """Read what is in the table, then follow it."""
        following = await self._table.follow(self)
        self._stack.push_async_callback(following.close)
        publishing = supervise("tell sessions", self._publish)
        self._stack.callback(publishing.cancel)
        try:
            await asyncio.wait_for(self._caught_up.wait(), READ_S)
        except TimeoutError:
            self._log.warning("sessions of before are not read yet", waited_s=READ_S)

    async def stop(self) -> None:
        """Tell what is left, and stop following."""
        self._flush()
        await self._stack.aclose()

    def on_value(self, key: str, value: bytes) -> None:
        """Learn a binding."""
        worker = WorkerId(value.decode("utf-8", "replace"))
        self._sessions.learn(key, worker, time.monotonic())

    def on_caught_up(self) -> None:
        """Let the start go on."""
        self._log.info("sessions read", sessions=self._sessions.statistics().sessions)
        self._caught_up.set()

    async def _publish(self) -> None:
        self._woken.set()
        while True:
            await self._woken.wait()
            await asyncio.sleep(TELL_EVERY_S)
            self._woken.clear()
            self._flush()

    def _flush(self) -> None:
        """Write the changes. One that gets lost is written again when its session goes on."""
        updates = self._sessions.updates
        for key in list(updates):
            self._table.put(key, updates.pop(key).encode())
