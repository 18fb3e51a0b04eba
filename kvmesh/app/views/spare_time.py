"""Work that was put off, done in a small share of the event loop's time."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 0.025
"""Of all time so much may go into such work."""

MOST_S: Final = 0.025
"""Time that is saved up at most, a second's share."""

SLICE_S: Final = 0.0005
"""How long one turn of the loop may take longer for it, about."""

PAUSE_S: Final = 0.005
"""Between two slices requests are served."""

LEAST_UNITS: Final = 128
MOST_UNITS: Final = 1 << 16


class SpareTime:
    """Does `work(units)` in slices; it returns whether nothing is left. A slice has as many units
    as last took about `SLICE_S` by `timer`, seconds.
    """

    def __init__(
        self, work: Callable[[int], bool], timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._work = work
        self._timer = timer
        self._units = LEAST_UNITS
        self._saved_s = MOST_S
        self._earned_s = timer()

    async def catch_up(self) -> bool:
        """Work until nothing is left, or no time; return whether nothing is left."""
        done = False
        while self._may_work():
            done = self._slice()
            if done:
                break
            await asyncio.sleep(PAUSE_S)
        return done

    def _may_work(self) -> bool:
        now = self._timer()
        self._saved_s = min(MOST_S, self._saved_s + SHARE * (now - self._earned_s))
        self._earned_s = now
        return self._saved_s > 0.0

    def _slice(self) -> bool:
        """Work once, and learn how much a slice should be."""
        began = self._timer()
        done = self._work(self._units)
        took_s = self._timer() - began
        self._saved_s -= took_s
        if took_s > SLICE_S:
            self._units = max(LEAST_UNITS, self._units // 2)
        elif not done and 2.0 * took_s < SLICE_S:
            self._units = min(MOST_UNITS, 2 * self._units)
        return done
