"""What replicas of a bucket charge to keys and tenants with limits, told to each other at once."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from kvmesh.actors.wire import Subjects, last_token
from kvmesh.core.admission.usage_limits import UsageLimits
from kvmesh.observe import get_logger
from kvmesh.ports import EventPlane
from kvmesh.tasks import end_tasks, supervise, wait_set

TELL_EVERY_S: Final = 0.01
"""So long replicas may admit what others have charged already."""

AGAIN_S: Final = 1.0
"""How often what was told is told again: messages may be lost."""

MOST_MESSAGES: Final = 16
"""In one turn of the event loop."""

LOG_EVERY_S: Final = 10.0


class LimitStore:
    """Publishes what `limits` charge, and has them hear of siblings. While the plane is away each
    replica limits by itself.
    """

    def __init__(
        self,
        limits: UsageLimits,
        plane: EventPlane,
        subjects: Subjects,
        router_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._plane = plane
        self._subjects = subjects
        self._router_id = router_id
        self._clock = clock
        self._woken = asyncio.Event()
        limits.on_news = self._woken.set
        self._logged_s = -LOG_EVERY_S
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Begin to hear and to tell."""
        listening = await self._plane.bus.subscribe(self._subjects.limits(), self._hear)
        self._stack.push_async_callback(listening.close)
        self._stack.push_async_callback(end_tasks, supervise("share limits", self._share))

    async def stop(self) -> None:
        """End; safe to call twice."""
        await self._stack.aclose()

    async def _share(self) -> None:
        again_s = self._clock() + AGAIN_S
        self._woken.set()
        while True:
            await wait_set(self._woken, again_s - self._clock())
            await asyncio.sleep(TELL_EVERY_S)
            self._woken.clear()
            now = self._clock()
            self._publish(again=now >= again_s)
            if now >= again_s:
                again_s = now + AGAIN_S

    def _publish(self, *, again: bool) -> None:
        if not self._plane.connected:
            return
        subject = self._subjects.limits(self._router_id)
        for _ in range(MOST_MESSAGES):
            message = self._limits.publish(again=again)
            if message is None:
                break
            again = False
            self._plane.bus.publish(subject, message)
        if self._limits.has_news():
            self._woken.set()

    def _hear(self, subject: str, data: bytes) -> None:
        sibling, now = last_token(subject), self._clock()
        wrong = "" if sibling == self._router_id else self._limits.hear(sibling, data, now)
        if wrong and now >= self._logged_s + LOG_EVERY_S:
            self._logged_s = now
            get_logger().warning("a sibling's limits refused", reason=wrong)
