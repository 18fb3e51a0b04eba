"""Requests that wait for their first byte, and whether somebody is at work on them at all."""

from collections.abc import Callable
from typing import Final, Protocol

from kvmesh.core.health.health import Answer
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.upstream.messages import UpstreamFailure

ASK_AFTER_S: Final = 3.0
"""A worker that lets a request wait for so long is asked whether it is there."""

ASK_EVERY_S: Final = 1.0
SLOW_ANSWERS: Final = 2
"""Answers in a row that came too late from a worker that hangs."""


class Waiter(Protocol):
    """A request at a worker, without any answer yet."""

    @property
    def forwarding(self) -> Forwarding:
        """Return its way."""
        ...

    @property
    def worker(self) -> str:
        """Return where it is."""
        ...

    @property
    def sent_s(self) -> float:
        """Return since when."""
        ...

    def is_overdue(self, now: float) -> bool:
        """Return whether it waits far longer than was to be expected, and others there, too."""
        ...


class HangWatch:
    """Finds workers that take requests and do not answer them.

    One that does not answer its health check either is given up by all that wait there; one that
    does, only by requests that are long overdue. `waiting` are the requests that were sent, in that
    order, and that no answer began of: who sends one enters it and takes it out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.given_up = 0
        self._clock = clock
        self.waiting: dict[Waiter, None] = {}
        self._asked_s: dict[str, float] = {}
        self._slow: dict[str, int] = {}

    def due(self, now: float) -> list[str]:
        """Return the workers to ask now. O(requests that wait for long)."""
        due: set[str] = set()
        for waiter in self.waiting:
            if now < waiter.sent_s + ASK_AFTER_S:
                break
            if now >= self._asked_s.get(waiter.worker, 0.0) + ASK_EVERY_S:
                due.add(waiter.worker)
        if not self.waiting:
            self._asked_s.clear()
            self._slow.clear()
        for worker in due:
            self._asked_s[worker] = now
        return sorted(due)

    def answered(self, worker: str, answer: Answer) -> None:
        """Take what asking a worker showed."""
        if answer == "ok":
            self._slow.pop(worker, None)
            self._give_up(worker, "its requests are overdue", overdue_only=True)
            return
        slow = self._slow[worker] = self._slow.get(worker, 0) + 1
        if answer == "down" or slow >= SLOW_ANSWERS:
            self._give_up(worker, "it does not answer its health check", overdue_only=False)

    def _give_up(self, worker: str, why: str, *, overdue_only: bool) -> None:
        for waiter in [one for one in self.waiting if one.worker == worker]:
            waiter.forwarding.scope.enter(self._leave, waiter, why, overdue_only=overdue_only)

    def _leave(self, waiter: Waiter, why: str, *, overdue_only: bool) -> None:
        """Have the attempt fail, so that another worker is tried."""
        now, worker = self._clock(), waiter.worker
        if overdue_only and not waiter.is_overdue(now):
            return
        self.given_up += 1
        text = f"{worker} gave no answer in {now - waiter.sent_s:.1f} s: {why}"
        waiter.forwarding.fail_attempt(UpstreamFailure("after_send", "hung", text, worker))
