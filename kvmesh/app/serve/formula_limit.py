"""Ends a computation that takes too long, an endless loop included."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from kvmesh.core.cost.own import FormulaTimeout, Guard, no_guard

_Result = TypeVar("_Result")

AGAIN_S: Final = 0.01
"""A computation that swallows its end is ended again after so long."""


class TimeLimit:
    """A `Guard` by an alarm signal, for the main thread: 3 us a call. `time_limit` makes it.

    The signal's handler raises `FormulaTimeout` between two steps of Python, so a single call into
    C that never returns (`sum(range(10**15))`) is not ended.
    """

    def __init__(self) -> None:
        """Raises `ValueError` in any other thread than the main one."""
        self._armed = self._ours = False
        self._before = signal.signal(signal.SIGALRM, self.on_alarm)

    def __call__(self, compute: Callable[[], _Result], limit_s: float) -> _Result:
        """Return what `compute` returns. Raises `FormulaTimeout` after `limit_s` seconds."""
        self._armed = self._ours = True
        timer = (0.0, 0.0)
        try:
            timer = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
            return compute()
        finally:
            # Python handles no signal on the way here and before this is set: an alarm that comes
            # behind it finds nothing to end.
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, *timer)
            self._ours = False

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Be the signal's handler: end what is computed. What ended just in time is not; then the
        alarm is for whoever handled it before, if anybody did.
        """
        if self._armed:
            raise FormulaTimeout
        if not self._ours and callable(self._before):
            self._before(number, frame)


def time_limit() -> Guard:
    """Return the process's one `TimeLimit`; in a thread other than the main one, where there are no
    signals, what waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return no_guard
    owner = getattr(signal.getsignal(signal.SIGALRM), "__self__", None)
    return owner if isinstance(owner, TimeLimit) else TimeLimit()
