"""Workers from the command line, as they answer: what a router alone has instead of heartbeats."""

from collections.abc import Iterable

import msgspec

from kvmesh.actors.engine_messages import EngineSilent
from kvmesh.actors.kernel import Effect, Fields, Log, Message, Send, Wake
from kvmesh.actors.messages import (
    Started,
    Tick,
    TrustChanged,
    WorkerGone,
    WorkerHeartbeat,
    WorkerSeen,
)
from kvmesh.actors.registry import info_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.worker_info import LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.registry import WorkerRegistry

CHECK_S = 1.0
SWEEP_BUDGET = 4096
DOWN = "its engine is down: nothing answers at its URL"
TOO_LATE = "its engine does not answer probes in time: it hangs or is very busy"
_NEW = (Trust.CATCHING_UP, "its KV events are being read")


class StaticRegistry:
    """Keeps `workers` true to what was last seen of each engine, and `index` clean.

    `reasons` says why a worker's events do not count in full; empty for those that do.
    A worker without events (`WorkerHeartbeat.events` False) is routed by what was sent to it.
    With `may_panic`, when no engine answers its probes but some only answer too late, those get
    requests all the same: an engine that computes for its life may not find the time for a probe.
    """

    def __init__(
        self,
        workers: WorkerRegistry,
        index: KvIndex | None,
        *,
        router: str,
        name: str = "registry",
        may_panic: bool = True,
    ) -> None:
        self.name = name
        self.reasons: dict[WorkerId, str] = {}
        self.answering: set[WorkerId] = set()
        self._workers = workers
        self._may_panic = may_panic
        self._slow: set[WorkerId] = set()
        self._index = index
        self._router = router
        self._trust: dict[WorkerId, TrustChanged] = {}

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case WorkerHeartbeat():
                return self._on_answer(message, now)
            case EngineSilent():
                return self._on_silent(message, now)
            case TrustChanged(worker):
                self._trust[worker] = message
                info = self._workers.info(worker)
                self._describe(worker, info, events=True)
                return ()
            case WorkerGone(worker):
                return self._on_gone(worker, now)
            case Started() | Tick():
                return self._on_tick(now)
            case _:
                return ()

    def _on_answer(self, beat: WorkerHeartbeat, now: float) -> Iterable[Effect]:
        worker = beat.worker
        self._workers.membership.observe(worker, beat.epoch, now, ready=True)
        self._describe(worker, info_of(beat), events=beat.events)
        report = beat.load.report()
        if report != LoadReport():
            self._workers.report(worker, report)
        seen = Send(self._router, WorkerSeen(beat))
        if worker in self.answering:
            return (seen,)
        self.answering.add(worker)
        self._slow.discard(worker)
        return (Log("info", "engine answers", {"worker": worker}), seen, *self._settle(now))

    def _on_silent(self, message: EngineSilent, now: float) -> Iterable[Effect]:
        worker = message.worker
        answered = worker in self.answering
        stranger = worker not in self._workers.membership
        why = TOO_LATE if message.slow else _refusal(message.status)
        self._workers.membership.observe(worker, 1, now, ready=False, why=why)
        self.answering.discard(worker)
        if not message.slow:
            self._slow.discard(worker)
        elif answered:
            self._slow.add(worker)
        fields: Fields = {"worker": worker, "reason": why}
        logs = (Log("warning", "engine gets no requests", fields),) if answered or stranger else ()
        seen = (Send(self._router, WorkerSeen(message.beat)),) if message.beat else ()
        return (*logs, *(seen if stranger else ()), *self._settle(now))

    def _settle(self, now: float) -> Iterable[Effect]:
        """Use engines that are slow to answer only while no other engine answers."""
        panic = self._may_panic and not self.answering and bool(self._slow)
        for worker in self._slow:
            self._workers.membership.observe(worker, 1, now, ready=panic, why=TOO_LATE)
        if panic == self._workers.panic:
            return ()
        self._workers.panic = panic
        fields: Fields = {"workers": ", ".join(sorted(self._slow))}
        if panic:
            return (Log("error", "no engine answers in time, requests go to all the same", fields),)
        return (Log("warning", "panic is over", fields),)

    def _on_gone(self, worker: WorkerId, now: float) -> Iterable[Effect]:
        self._workers.membership.remove(worker)
        self.answering.discard(worker)
        self._slow.discard(worker)
        self.reasons.pop(worker, None)
        self._trust.pop(worker, None)
        if self._index is not None:
            self._index.remove_worker(worker)
        return (Send(self._router, WorkerGone(worker)), *self._settle(now))

    def _describe(self, worker: WorkerId, info: WorkerInfo, *, events: bool) -> None:
        trust, reason = Trust.APPROX, "its engine publishes no KV events"
        if events:
            known = self._trust.get(worker)
            trust, reason = (known.trust, known.reason) if known else _NEW
        self._workers.describe(worker, msgspec.structs.replace(info, trust=trust))
        if reason:
            self.reasons[worker] = reason
        else:
            self.reasons.pop(worker, None)

    def _on_tick(self, now: float) -> Iterable[Effect]:
        """Clean the index in slices, and look again in a while.

        An engine answers until it is silent: that a look at it is late says nothing of it.
        """
        membership = self._workers.membership
        for worker in self._slow if self._workers.panic else self.answering:
            epoch = membership.epoch(worker)
            if epoch is not None:
                membership.observe(worker, epoch, now, ready=True)
        done = self._index is None or self._index.sweep(SWEEP_BUDGET)
        return (Wake(CHECK_S if done else 0.0, Tick("check")),)


def _refusal(status: int) -> str:
    return f"its engine answers /v1/models with {status}, not with its models" if status else DOWN
