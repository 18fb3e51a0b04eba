"""Where conversations are, and whose ids, in a table that siblings share, kept over restarts."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final, Protocol

from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import EventPlane, SharedTable
from kvmesh.tasks import end_tasks, supervise

TELL_EVERY_S: Final = 0.02
"""A conversation's next turn comes long after: what comes so soon after the first news is told with
it.
"""

MOST_AT_ONCE: Final = 512
"""Homes told in one turn of the event loop."""

READ_S: Final = 5.0
"""How long a start waits for what was known before: then the meta-router goes on alone."""

RETRY_S: Final = 5.0


class SharedHomes(Protocol):
    """What is shared: of meta-routers `Homes`, of a bucket's replicas `KeptIds`."""

    updates: dict[str, str]
    on_news: Callable[[], None] | None

    def __len__(self) -> int:
        """Return how much is known."""
        ...

    def learn(self, key: str, value: str, now: float) -> None:
        """Take what another process told."""
        ...


class HomeStore:
    """Tells the others of `homes`, and `homes` of theirs, by the table that `make` makes.

    Without a table, since JetStream is off or this account may not, `homes` are this process's own;
    it is asked for again. While the plane is away what is to be told waits. `called` names them.
    """

    def __init__(
        self,
        homes: SharedHomes,
        plane: EventPlane,
        make: Callable[[], Awaitable[SharedTable]],
        called: str,
    ) -> None:
        self._make = make
        self._called = called
        self._homes = homes
        self._plane = plane
        self._caught_up = asyncio.Event()
        self._woken = asyncio.Event()
        homes.on_news = self._woken.set
        self._stack = contextlib.AsyncExitStack()
        self._table: SharedTable | None = None
        self._log = get_logger()

    async def start(self, limit_s: float = READ_S) -> None:
        """Read what is in the table, then follow it; at most `limit_s`, the rest comes later."""
        sharing = supervise("share homes", self._share)
        self._stack.push_async_callback(end_tasks, sharing)
        try:
            await asyncio.wait_for(self._caught_up.wait(), limit_s)
        except TimeoutError:
            self._log.warning("table is not read yet", table=self._called, waited_s=limit_s)

    async def stop(self) -> None:
        """Tell what is left, and stop following; safe to call twice."""
        self._publish(len(self._homes.updates))
        await self._stack.aclose()

    def on_value(self, key: str, value: bytes) -> None:
        """Learn a home."""
        self._homes.learn(key, value.decode("utf-8", "replace"), time.monotonic())

    def on_caught_up(self) -> None:
        """Let the start go on."""
        self._log.info("table read", table=self._called, known=len(self._homes))
        self._caught_up.set()

    async def _share(self) -> None:
        self._table = await self._open()
        following = await self._table.follow(self)
        self._stack.push_async_callback(following.close)
        self._woken.set()
        while True:
            await self._woken.wait()
            await asyncio.sleep(TELL_EVERY_S)
            self._publish(MOST_AT_ONCE)
            if not self._homes.updates:
                self._woken.clear()

    async def _open(self) -> SharedTable:
        said = ""
        while True:
            try:
                return await self._make()
            except TransportError as error:
                if str(error) != said:
                    self._log.warning("table is not shared", table=self._called, error=str(error))
                said = str(error)
                self._caught_up.set()
            await asyncio.sleep(RETRY_S)

    def _publish(self, most: int) -> None:
        """Write changes. One that gets lost is written again when half its time to live is over."""
        if self._table is None or not self._plane.connected:
            return
        updates = self._homes.updates
        for key in list(islice(updates, most)):
            self._table.put(key, updates.pop(key).encode())
