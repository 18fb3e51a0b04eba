"""For machines over queues and links: callees that raise when a machine says so, and a ledger.

A machine has one `Trial`. It puts what its queue calls (an encoder, a sender, a chooser, a clock)
through `Trial.may_raise`, enters in `ledger` what the queue accepted and how it ended, and calls
the queue by `Trial.attempt`, which draws at which of the calls within it one raises. Then its
invariants compare the queue with the ledger.
"""

import contextlib
import functools
import signal
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Final, ParamSpec, TypeVar

from hypothesis import strategies as st

P = ParamSpec("P")
T = TypeVar("T")

ENDLESS_S: Final = 10.0
MOST_CALLS: Final = 10_000

raises_at: Final = st.sampled_from((0, 0, 1, 1, 2, 3, 5))
"""The call within an attempt that raises, 0 for none."""


class PlantedError(Exception):
    """What a callee raised because the machine said so."""


class Ledger:
    """What was accepted, and has to end in exactly one way."""

    def __init__(self) -> None:
        self.open: dict[Hashable, None] = {}
        self.ended: Counter[str] = Counter()

    def accept(self, item: Hashable) -> None:
        """Enter an item that the queue took."""
        assert item not in self.open, f"{item!r} was accepted twice"
        self.open[item] = None

    def end(self, item: Hashable, how: str) -> None:
        """Enter how an item ended; once, and only one that was accepted."""
        assert item in self.open, f"{item!r} ended ({how}), which was not in the queue"
        del self.open[item]
        self.ended[how] += 1


class Trial:
    """Faults at the calls of one queue, and the ledger of its items."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.fired = 0
        self.raised: Counter[str] = Counter()
        self._left = 0
        self._calls = 0

    def may_raise(self, plain: Callable[P, T], *, late: bool = False) -> Callable[P, T]:
        """Return `plain`, which raises at the call drawn: before it does anything, or when done."""

        @functools.wraps(plain)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if late:
                found = plain(*args, **kwargs)
                self.count(plain.__name__)
                return found
            self.count(plain.__name__)
            return plain(*args, **kwargs)

        return call

    def count(self, name: str) -> None:
        """Count a call, and raise if it is the one."""
        self._calls += 1
        assert self._calls <= MOST_CALLS, f"{name} is called without end"
        self._left -= 1
        if self._left == 0:
            self.fired += 1
            self.raised[name] += 1
            raise PlantedError(name)

    def attempt(
        self, at: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | PlantedError:
        """Return what `call` returns, or the error that its `at`-th call to a callee raised."""
        self._left, self._calls = at, 0
        try:
            with finite():
                return call(*args, **kwargs)
        except PlantedError as error:
            return error
        finally:
            self._left = 0


@contextlib.contextmanager
def finite() -> Iterator[None]:
    """Fail, instead of hanging, when the block does not end."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise AssertionError(f"still at it after {ENDLESS_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    former, _ = signal.setitimer(signal.ITIMER_REAL, ENDLESS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, former)
        signal.signal(signal.SIGALRM, before)
