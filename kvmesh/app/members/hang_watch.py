"""Requests that wait for their first byte, and whether somebody is at work on them at all."""

from collections.abc import Callable, Sequence, Sized
from typing import Final, Protocol

from kvmesh.app.members.open_streams import OpenStreams
from kvmesh.core.members.health import Answer
from kvmesh.core.members.progress import Due
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.upstream.messages import UpstreamFailure

ASK_AFTER_S: Final = 3.0
"""A worker that lets a request wait for so long is asked whether it is there."""

ASK_EVERY_S: Final = 1.0
SLOW_ANSWERS: Final = 3
"""Answers in a row that came too late from a worker that hangs: some 5 s."""

SLOW_FLEET: Final = 6
"""So many times more are awaited while most workers answer late."""

SLOW_S: Final = 10.0
"""A late answer counts for so long: who is asked no more is not known to be slow."""

SILENT: Final = "it does not answer its health check"
STALLED: Final = "its engine has requests and makes no progress"


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

    @property
    def due(self) -> Due | None:
        """Return what its engine owes it; None where no engine is chosen."""
        ...


class Evidence(Protocol):
    """What shows whether the engines of workers make progress."""

    def shown_s(self, worker: str) -> float:
        """Return when it last did: by its figures, or a byte of any answer."""
        ...

    def is_stalled(self, worker: str, dues: Sequence[Due]) -> bool:
        """Return whether it stands still though these requests wait there."""
        ...


class HangWatch:
    """Finds workers that take requests and do nothing for them.

    One that does not answer its health check is given up by all that wait there, unless it shows
    progress all the same. One that answers is given up if its engine stands still by the
    `evidence`; without any, as of a replica that may hold a request, never. `waiting` are the
    requests that were sent, in that order, and that no answer began of: who sends one enters it and
    takes it out. `members` are all workers: while most answer late, the machine is slow. `streams`
    are those that could go on elsewhere: their workers are asked and given up in the same way.
    """

    def __init__(
        self, clock: Callable[[], float], members: Callable[[], Sized] = tuple[str, ...]
    ) -> None:
        self.given_up = 0
        self.evidence: Evidence | None = None
        self.streams: OpenStreams | None = None
        self.waiting: dict[Waiter, None] = {}
        self._clock = clock
        self._members = members
        self._asked_s: dict[str, float] = {}
        self._slow: dict[str, tuple[int, float, float]] = {}

    def due(self, now: float) -> list[str]:
        """Return the workers to ask now. O(requests that wait for long)."""
        due: set[str] = set()
        for waiter in self.waiting:
            if now < waiter.sent_s + ASK_AFTER_S:
                break
            if now >= self._asked_s.get(waiter.worker, 0.0) + ASK_EVERY_S:
                due.add(waiter.worker)
        quiet = set[str]() if self.streams is None else self.streams.quiet(now)
        due |= {one for one in quiet if now >= self._asked_s.get(one, 0.0) + ASK_EVERY_S}
        if not (self.waiting or quiet):
            self._asked_s.clear()
            self._slow.clear()
        for worker in due:
            self._asked_s[worker] = now
        return sorted(due)

    def answered(self, worker: str, answer: Answer) -> None:
        """Take what asking a worker showed."""
        match answer:
            case "down":
                self._give_up(worker, SILENT)
            case "slow":
                self._take_slow(worker)
            case "unready" if self.evidence is not None:
                self._give_up(worker, SILENT)
            case _:
                self._slow.pop(worker, None)
                if self._is_stalled(worker, self._at(worker)):
                    self._give_up(worker, STALLED)

    def is_stalled(self, waiter: Waiter) -> bool:
        """Return whether the engine stands still at which one request waits."""
        return self._is_stalled(waiter.worker, [waiter])

    def _is_stalled(self, worker: str, waiting: list[Waiter]) -> bool:
        dues = [due for one in waiting if (due := one.due) is not None]
        if self.streams is not None:
            dues += self.streams.dues(worker)
        return bool(self.evidence is not None and dues and self.evidence.is_stalled(worker, dues))

    def _take_slow(self, worker: str) -> None:
        now = self._clock()
        self._slow = {name: one for name, one in self._slow.items() if now - one[2] < SLOW_S}
        count, since_s, _ = self._slow.get(worker, (0, self._asked_s.get(worker, now), now))
        if self.evidence is not None and self.evidence.shown_s(worker) > since_s:
            self._slow.pop(worker, None)
            return
        self._slow[worker] = count + 1, since_s, now
        slow = len(self._slow)
        most = slow > 1 and 2 * slow > len(self._members())
        if count + 1 >= SLOW_ANSWERS * (SLOW_FLEET if most else 1):
            self._give_up(worker, SILENT)

    def _at(self, worker: str) -> list[Waiter]:
        return [one for one in self.waiting if one.worker == worker]

    def _give_up(self, worker: str, why: str) -> None:
        """Have the attempts there fail, so that other workers are tried."""
        for waiter in self._at(worker):
            waiter.forwarding.scope.enter(self._leave, waiter, why)
        if self.streams is not None:
            self.streams.give_up(worker, why)

    def _leave(self, waiter: Waiter, why: str) -> None:
        now, worker = self._clock(), waiter.worker
        self.given_up += 1
        text = f"{worker} gave no answer in {now - waiter.sent_s:.1f} s: {why}"
        waiter.forwarding.fail_attempt(UpstreamFailure("after_send", "hung", text, worker))
