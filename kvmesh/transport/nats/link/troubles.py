"""What JetStream refuses now: in the log when it begins and ends, for probes in between."""

import asyncio
from typing import Final

from structlog.typing import FilteringBoundLogger

NO_ROOM: Final = (10002, 10023, 10028, 10047, 10077)
"""Resources of the account, the server or the stream are used up: the disk is full, or a bound met.
"""

SURE_S: Final = 2.0
"""While little room is left some writes fit and others do not: that is still one trouble."""

LAPSE_S: Final = 10.0
"""What matters is tried again sooner; what is not says nothing of the present."""


class Troubles:
    """One entry for each thing that is refused, until it works for 2 s or is not tried for 10 s."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._now: dict[str, str] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def begin(self, what: str, error: str) -> None:
        """Note that `what` fails by `error`, "" for none; logged when that is news."""
        if not error:
            return
        self._end_in(LAPSE_S, what)
        if self._now.get(what) != error:
            self._now[what] = error
            self._log.error("JetStream refuses", what=what, error=error)

    def end(self, what: str) -> None:
        """Note that `what` works."""
        if what in self._now:
            now = asyncio.get_running_loop().time()
            if self._ends[what].when() > now + SURE_S:
                self._end_in(SURE_S, what)

    def warnings(self) -> tuple[str, ...]:
        """Return what people should know of it, one line each."""
        return tuple(f"JetStream: {what}: {error}" for what, error in sorted(self._now.items()))

    def _end_in(self, after_s: float, what: str) -> None:
        if what in self._ends:
            self._ends[what].cancel()
        loop = asyncio.get_running_loop()
        self._ends[what] = loop.call_later(after_s, self._over, what)

    def _over(self, what: str) -> None:
        del self._ends[what], self._now[what]
        self._log.warning("JetStream refuses no more", what=what)
