"""Where a request could go as well: what a gateway is told besides the worker that was chosen."""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final

from kvmesh._native import Placed
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError

LOOKED_AT: Final = 8
"""Of a large fleet so many are drawn, and those of them taken that have least to do."""

SPARE: Final = 4
"""So many more are asked for, since the chosen one is among them, and others may be no choice."""

_NOBODY: Final[frozenset[WorkerId]] = frozenset()


class Alternatives:
    """Finds up to `most` origins besides that of a decision, the best first.

    Where a decision kept what it weighed, by that; else by load alone: weighing a fleet again costs
    as much as deciding. `find_beat` knows who is where.
    """

    def __init__(
        self,
        most: int,
        scheduler: Scheduler,
        find_beat: Callable[[WorkerId], WorkerHeartbeat | None],
        rng: Random,
    ) -> None:
        self._most = most
        self._scheduler = scheduler
        self._find_beat = find_beat
        self._rng = rng

    def of(self, placed: Placed, one: Dispatched, failed: frozenset[WorkerId]) -> tuple[str, ...]:
        """Return those of what was decided last of a request, none of them among the `failed`."""
        record = placed.record
        if one.plain:
            return self.of_plain(record.worker, placed.model, record.decided_s)
        return self.of_decision(record.decision, one.request, failed, placed.sent_s)

    def of_decision(
        self, decision: Decision, request: RouteRequest, failed: frozenset[WorkerId], now: float
    ) -> tuple[str, ...]:
        """Return those of a decision about `request`, none of them among the `failed`."""
        weighed = decision.candidates
        if len(weighed) > 1:
            sign = -1.0 if decision.cost.maximise else 1.0
            scores = {
                one.worker: sign * score
                for one, score in zip(weighed, decision.scores, strict=True)
            }
            return self._origins(decision.worker, sorted(scores, key=scores.__getitem__), failed)
        try:
            names = self._scheduler.workers.eligible(request, now)
        except NoWorkerError:
            return ()
        return self._origins(decision.worker, self._least_loaded(names), failed)

    def of_plain(self, worker: WorkerId, model: str, now: float) -> tuple[str, ...]:
        """Return those of a request without wishes that goes to `worker`."""
        states = self._scheduler.workers.plain(model, now)
        # Ranks behind one URL count once.
        names = self._scheduler.decider.runners_up(states, self._most + SPARE)
        if names is not None:
            return self._origins(worker, names, _NOBODY)
        if len(states) > LOOKED_AT:
            states = tuple(self._rng.sample(states, LOOKED_AT))
        names = [one.worker for one in states]
        return self._origins(worker, self._least_loaded(names), _NOBODY)

    def _least_loaded(self, names: Sequence[WorkerId]) -> list[WorkerId]:
        if len(names) > LOOKED_AT:
            names = self._rng.sample(names, LOOKED_AT)
        loads = self._scheduler.sequences.loads

        def work(name: WorkerId) -> tuple[int, int]:
            load = loads(name)
            return load.prefill_tokens, load.active_blocks

        return sorted(names, key=work)

    def _origins(
        self, chosen: WorkerId, names: Iterable[WorkerId], failed: frozenset[WorkerId]
    ) -> tuple[str, ...]:
        """Return where they are; ranks behind one URL are one place."""
        beat = self._find_beat(chosen)
        found: list[str] = []
        own = "" if beat is None else beat.url
        for name in names:
            if len(found) >= self._most:
                break
            other = None if name in failed else self._find_beat(name)
            # A rank is told by a header, which is the chosen one's.
            if other is not None and other.dp_rank is None and other.url not in (own, *found):
                found.append(other.url)
        return tuple(found)


def alternatives_of(
    most: int,
    scheduler: Scheduler,
    find_beat: Callable[[WorkerId], WorkerHeartbeat | None],
    seed: int,
) -> Alternatives | None:
    """Return what finds up to `most`, None where nobody wants any; `seed` 0: by chance."""
    rng = Random(seed or None)  # noqa: S311 - a choice, no secret
    return Alternatives(most, scheduler, find_beat, rng) if most else None
