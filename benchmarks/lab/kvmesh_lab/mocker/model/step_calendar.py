"""Who has something to do in which step of an engine."""

from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class StepCalendar(Generic[T]):
    """Entries by step number. Whoever is entered is so for one step at most."""

    def __init__(self) -> None:
        self._steps: dict[int, list[T]] = {}
        self._order: list[int] = []

    def enter(self, step: int, one: T) -> None:
        """Enter `one` for `step`. O(log steps)."""
        entered = self._steps.get(step)
        if entered is None:
            self._steps[step] = [one]
            heappush(self._order, step)
        else:
            entered.append(one)

    def next_step(self) -> float:
        """Return the earliest step anybody is entered for, `inf` for none. O(1) on average."""
        order, steps = self._order, self._steps
        while order:
            if order[0] in steps:
                return order[0]
            heappop(order)
        return inf

    def take(self, step: int) -> list[T]:
        """Return the entries of `step`, in order of entry, and forget the step."""
        return self._steps.pop(step, [])

    def strike(self, step: int, one: T) -> None:
        """Take one that leaves early out of `step`, if that step is still to come."""
        entered = self._steps.get(step)
        if entered is not None:
            entered.remove(one)
            if not entered:
                del self._steps[step]
