"""What the start of a process waits for, said to people: at once, then each half minute."""

import asyncio
from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

SAID_EACH_S: Final = 30.0
STEP_S: Final = 0.5


class Waits:
    """Says what is waited for in the log; `reason` is it in words for a probe, "" for nothing."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.reason = ""
        self._log = log
        self._logged_s = 0.0

    def begin(self, event: str, reason: str, error: str) -> None:
        """Wait for something, for the `error` that it meets now; call it at each attempt."""
        now = asyncio.get_running_loop().time()
        if self.reason == reason and now - self._logged_s < SAID_EACH_S:
            return
        self.reason = reason
        self._logged_s = now
        self._log.warning(event, error=error)

    def end(self) -> None:
        """Wait no more."""
        self.reason = ""


async def first_done(
    works: set[asyncio.Future[None]], limit_s: float | None, waiting: Callable[[], None]
) -> None:
    """Return when one of `works` is done or `limit_s` is over; without a limit `waiting` is called
    each half second.
    """
    while True:
        step_s = STEP_S if limit_s is None else limit_s
        done, _ = await asyncio.wait(works, timeout=step_s, return_when=asyncio.FIRST_COMPLETED)
        if done or limit_s is not None:
            return
        waiting()
