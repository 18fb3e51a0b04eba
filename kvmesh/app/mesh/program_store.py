"""The agents of a bucket in a table that its replicas share, kept over restarts."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

from kvmesh.core.programs.shared import MAX_PROGRAMS, PROGRAM_TTL_S
from kvmesh.core.programs.sharing import ProgramSharing
from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import EventPlane, SharedTable
from kvmesh.tasks import end_tasks, supervise, wait_set

TELL_EVERY_S: Final = 0.02
"""A turn that waits at one replica for another's end waits so much longer: what comes so soon after
the first news is told with it.
"""

MOST_AT_ONCE: Final = 512
"""Agents told in one turn of the event loop."""

SETTLE_EVERY_S: Final = 1.0

READ_S: Final = 5.0
"""How long a start waits for what was known before: then the replica goes on alone."""

RETRY_S: Final = 5.0
LOG_EVERY_S: Final = 10.0


class ProgramStore:
    """Tells the other replicas of a bucket of the agents whose turns this one serves, and hears of
    theirs. `alive` returns the replicas that are there, by name, with their epochs.

    Without a table, since JetStream is off or this account may not, each replica governs what it
    sees itself; the table is asked for again. While the plane is away what is to be told waits.
    """

    def __init__(
        self,
        sharing: ProgramSharing,
        plane: EventPlane,
        bucket: str,
        alive: Callable[[], Mapping[str, int]],
    ) -> None:
        self.sharing = sharing
        self._plane = plane
        self._bucket = bucket
        self._alive = alive
        self._read = asyncio.Event()
        self._begun = asyncio.Event()
        self._woken = asyncio.Event()
        sharing.on_news(self._woken.set)
        self._stack = contextlib.AsyncExitStack()
        self._table: SharedTable | None = None
        self._logged_s = -LOG_EVERY_S
        self._log = get_logger()

    async def start(self) -> None:
        """Read what is in the table, then follow it; at most `READ_S`, the rest comes later."""
        self._stack.callback(self._plane.on_change(self._on_change))
        sharing = supervise("share programs", self._share)
        self._stack.push_async_callback(end_tasks, sharing)
        try:
            await asyncio.wait_for(self._begun.wait(), READ_S)
        except TimeoutError:
            self._log.warning("programs of before are not read yet", waited_s=READ_S)

    async def stop(self) -> None:
        """Tell what is left, and stop following; safe to call twice."""
        self._publish(MAX_PROGRAMS)
        await self._stack.aclose()

    def on_value(self, key: str, value: bytes) -> None:
        """Learn an agent."""
        unix_s = None if self._read.is_set() else time.time()
        now = time.monotonic()
        wrong = self.sharing.receive(key, value, now, unix_s)
        if wrong and now >= self._logged_s + LOG_EVERY_S:
            self._logged_s = now
            refused = self.sharing.statistics().refused
            self._log.warning("agent refused", reason=wrong, refused=refused)

    def on_caught_up(self) -> None:
        """Let the start go on."""
        self._log.info("programs read", agents=self.sharing.statistics().received)
        self._read.set()
        self._begun.set()

    def _on_change(self, up: bool) -> None:
        if up:
            self.sharing.publish_again()

    async def _share(self) -> None:
        if self._table is None:
            table = await self._open()
            following = await table.follow(self)
            self._stack.push_async_callback(following.close)
            self._table = table
        self._woken.set()
        settle_s = time.monotonic() + SETTLE_EVERY_S
        while True:
            await wait_set(self._woken, settle_s - time.monotonic())
            if self.sharing.has_updates():
                await asyncio.sleep(TELL_EVERY_S)
            now = time.monotonic()
            if now >= settle_s:
                settle_s = now + SETTLE_EVERY_S
                self._settle(now)
            self._publish(MOST_AT_ONCE)
            if not self.sharing.has_updates():
                self._woken.clear()

    def _settle(self, now: float) -> None:
        if self._plane.connected and (ended := self.sharing.settle(self._alive(), now)):
            self._log.info("turns ended with their replica", turns=ended)

    async def _open(self) -> SharedTable:
        said = ""
        while True:
            try:
                return await self._plane.programs(self._bucket, PROGRAM_TTL_S, MAX_PROGRAMS)
            except TransportError as error:
                if str(error) != said:
                    self._log.warning("programs are not shared", error=str(error))
                said = str(error)
                self._begun.set()
            await asyncio.sleep(RETRY_S)

    def _publish(self, most: int) -> None:
        if self._table is None or not self._plane.connected:
            return
        for key, value in self.sharing.take(most, time.monotonic(), time.time()):
            self._table.put(key, value)
