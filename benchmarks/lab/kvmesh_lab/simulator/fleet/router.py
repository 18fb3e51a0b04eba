"""One router replica of a simulated fleet: the production scheduler and its bookings."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Literal, assert_never

import msgspec

from kvmesh._native import Booking, Placed
from kvmesh.core.admission.queue import AdmissionOptions
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import ALL_BLOCKS, BlockHashes, pack_hashes
from kvmesh.core.cost.selection import Random
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import NO_FLEET
from kvmesh.core.cost.weights import NO_WEIGHTS
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    Verdict,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.touch import Touch, Touches, TouchOptions
from kvmesh.core.programs.turn import Stop, Turn, TurnEnd
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.disaggregation import decode_request
from kvmesh.core.routing.late_binding import CHECK_EVERY_S, LateBinding
from kvmesh.core.routing.overdue import PREDICTED_MS
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import session_key
from kvmesh.core.routing.unwatched import Unwatched, UnwatchedOptions
from kvmesh.errors import NoWorkerError, UnattainableError
from kvmesh_lab.mocker.model.faults import FaultKind
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import Errand, FleetRequest
from kvmesh_lab.simulator.fleet.splitting import Splitting, role_of

SETTLE_S: Final = 0.5
"""Old failures cost less from time to time, as in `app.members.failure_care`."""

AttemptKind = Literal["served", "refused", "unwatched"] | FaultKind


class AttemptEnd(msgspec.Struct, frozen=True):
    """How an attempt ended, as a router sees it. `status` 0: no answer, or none that is HTTP.

    `refused`: the client's own fault. `unwatched`: nobody saw the answer, it is taken to be over.
    A kind of fault otherwise; after `hang` the client left. `began_s` is when the first token of a
    stream was seen.
    """

    request_id: str
    worker: WorkerId
    kind: AttemptKind
    status: int
    retry_after_s: int | None = None
    output_tokens: int = 0
    computed_tokens: int = 0
    stop: Stop = ""
    began_s: float | None = None

    def attempt(self, lost_s: float) -> Attempt:
        """Return what the end shows of the worker, as a proxy sees it."""
        match self.kind:
            case "served" | "slow":
                return SERVED
            case "refused":
                return Attempt(Verdict.CLIENT, str(self.status))
            case "status" | "dead":
                return status_attempt(self.status, lost_s, float(self.retry_after_s or 0))
            case "hang" | "hang-after" | "unwatched":
                return UNKNOWN
            case "reset" | "cut" | "die-after":
                return failed_attempt(self.kind, lost_s)
            case "garbage" | "half-head" | "bad-answer":
                kind = "bad_answer" if self.kind == "bad-answer" else "malformed"
                return failed_attempt(kind, lost_s)
            case _:
                assert_never(self.kind)

    def turn_end(self) -> TurnEnd:
        """Return how the turn of a program ended."""
        return TurnEnd(
            served=self.kind in ("served", "slow"),
            worker=self.worker,
            output_tokens=self.output_tokens,
            computed_tokens=self.computed_tokens,
            stop=self.stop,
        )


class FleetRouter:
    """Decides for its own requests and counts its peers'; refuses nothing, however long it waits.

    `ended` counts its attempts by worker and by how they ended, `decided` hears of each decision
    that is made at once. All replicas hear the same events
    at the same time, so they may share one `index`. Nobody asks engines for their health here: one
    that was left out gets one request when its back-off is over.
    """

    def __init__(
        self,
        name: str,
        policy: RouterOptions,
        workers: Sequence[tuple[WorkerId, int]],
        index: KvIndex | None,
        rng: Random,
        labels: frozenset[str] = frozenset(),
    ) -> None:
        """Know `workers`, each with its KV blocks; all have `labels`."""
        self.name = name
        self.ended: Counter[tuple[WorkerId, AttemptKind]] = Counter()
        self.sequences = new_sequences(policy.block_size)
        membership = Membership()
        self.scheduler = Scheduler(
            policy,
            rng,
            membership=membership,
            sequences=self.sequences,
            index=index,
            routed=new_approx(thinned=True),
        )
        self.scheduler.listen(new_approx(graded=True))
        self._binding = LateBinding(self.scheduler, AdmissionOptions(max_backlog_ms=0.0))
        self._held: dict[str, Errand] = {}
        self.governor: Governor | None = None
        self._turns: dict[str, Turn] = {}
        self.touches: Touches | None = None
        self._prompts: dict[str, FleetRequest] = {}
        self.decided: Callable[[Decision], None] | None = None
        self._settled_s = 0.0
        self._tells_lengths, self._tells_final = True, False
        self._targets: Targets | None = None
        self._reported = self._whole = False
        self.splitting: Splitting | None = None
        self.unwatched: Unwatched | None = None
        self._workers = tuple(workers)
        for worker, blocks in workers:
            membership.add(worker, 0.0)
            self.scheduler.workers.describe(worker, WorkerInfo(total_blocks=blocks, labels=labels))

    @property
    def waiting(self) -> int:
        """Return how many requests are held."""
        return len(self._held)

    def divide(self, fleet: FleetOptions) -> None:
        """Have the first engines compute prompts for the others from now on."""
        self.splitting = Splitting(self.scheduler, fleet)
        for number, (worker, blocks) in enumerate(self._workers):
            role = role_of(number, fleet)
            info = msgspec.structs.replace(role, total_blocks=blocks)
            self.scheduler.workers.describe(worker, info)

    def hold(self, fleet: FleetOptions) -> None:
        """Hold requests from now on while their worker's predicted backlog is longer."""
        self._binding.change(
            AdmissionOptions(
                policy=fleet.queue_policy,
                fairness=fleet.queue_fairness,
                quantum_tokens=fleet.quantum_tokens,
                max_backlog_ms=fleet.max_backlog_ms,
                max_queued=sys.maxsize,
                max_queued_per_tenant=sys.maxsize,
                max_wait_s=inf,
            )
        )

    def govern(self, options: GovernorOptions, rule: type[Governor] = Governor) -> None:
        """Have programs take turns from now on, by `rule`."""
        self.governor = self._binding.governor = rule(options, GovernedFleet(self.scheduler))

    def touch(self, options: TouchOptions) -> None:
        """Have contexts of paused agents touched from now on, of programs that take turns."""
        assert self.governor is not None, "touches are of its programs"
        self.touches = Touches(options, self.governor.table, GovernedFleet(self.scheduler))

    def plan_touches(self, now: float) -> list[tuple[Touch, FleetRequest]]:
        """Return what engines are to be reminded of, and the prompt to do it with."""
        if self.touches is None:
            return []
        prompts, overlaps = self._prompts, self.scheduler.overlaps
        size = self.scheduler.options.block_size

        def missing(agent: str, worker: WorkerId) -> int:
            hashes = BlockHashes.of(prompts[agent].hashes, size)
            return size * (hashes.blocks - overlaps.find(hashes, now).overlaps.get(worker, 0))

        return [(one, prompts[one.agent]) for one in self.touches.plan(now, missing)]

    def next_check_s(self, now: float) -> float:
        """Return when to look again whose turn it is, inf: when something happens."""
        if self._binding.waiting:
            return now + CHECK_EVERY_S
        return inf if self.governor is None else max(self.governor.next_s(now), now + CHECK_EVERY_S)

    def aim(self, fleet: FleetOptions) -> None:
        """Serve requests within targets from now on, or refuse them."""
        self._targets = fleet.targets
        self.scheduler.judge.options = fleet.slo

    def unwatch(self, fleet: FleetOptions, *, infers: bool) -> None:
        """Know of answers what `fleet` says from now on, and infer the rest."""
        self._tells_lengths, self._tells_final = fleet.tells_lengths, fleet.tells_final
        self._reported, self._whole = fleet.feedback == "ends", fleet.feedback == "whole"
        if infers:
            options = UnwatchedOptions(report_age_s=fleet.report_age_s)
            self.unwatched = Unwatched(self.scheduler, options)

    def sent(self, decision: Decision, errand: Errand, now: float) -> None:
        """Note that a request is on its way to the worker decided on."""
        turn = self._turns.get(decision.request_id)
        if self.touches is not None and turn is not None:
            self.touches.chosen(turn, decision.worker)
            self._prompts[turn.agent] = errand.request
        if self.unwatched is not None:
            due_s = now + PREDICTED_MS.function(decision.chosen, NO_FLEET, NO_WEIGHTS) / 1000.0
            hashes = BlockHashes.of(errand.request.hashes, self.scheduler.options.block_size)
            self.unwatched.add(decision.request_id, hashes, due_s, reported=self._reported)

    def ask(self, errand: Errand, now: float, named: WorkerId | None = None) -> Decision | None:
        """Choose a worker, or take the one named, and book the request there; None: it waits.

        Raises `NoWorkerError` when no worker is left that has not failed it, `UnattainableError`
        when it would miss its targets.
        """
        wanted = self._wanted(errand, named)
        if errand.moving:
            wanted = decode_request(wanted)
        if wanted.turn is None and self._binding.limit_ms(wanted.targets) == inf:
            chosen = self.scheduler.schedule(wanted, now).record.decision
            if self.decided is not None:
                self.decided(chosen)
            return chosen
        placed = self._binding.ask(wanted, now)
        if placed is None:
            self._held[wanted.request_id] = errand
            return None
        assert isinstance(placed, Placed), "nothing bounds the queue"
        decision = placed.record.decision
        if wanted.turn is not None and self.decided is not None:
            self.decided(decision)
        return decision

    def prefill(self, errand: Errand, now: float) -> Decision | None:
        """Have an engine compute the prompt for another, booked there; None: it stays whole."""
        if self.splitting is None or errand.moving:
            return None
        return self.splitting.prefill(errand, self._wanted(errand), now)

    def _wanted(self, errand: Errand, named: WorkerId | None = None) -> RouteRequest:
        trace, block_size = errand.request.trace, self.scheduler.options.block_size
        turn = self._turn(errand) if self.governor is not None and trace.session else None
        return RouteRequest(
            request_id=str(trace.index),
            hashes=BlockHashes.of(errand.request.hashes, block_size),
            prompt_tokens=trace.input_tokens,
            expected_output_tokens=trace.output_tokens if self._tells_lengths else 0,
            pinned_worker=named,
            excluded=errand.failed,
            tenant=trace.tenant,
            adapter=trace.lora,
            turn=turn,
            targets=self._targets,
            streams=not self._whole,
        )

    def _turn(self, errand: Errand) -> Turn:
        trace = errand.request.trace
        turn = self._turns.get(str(trace.index))
        if turn is None:
            agent = session_key(trace.session, trace.tenant)
            turn = self._turns[str(trace.index)] = Turn(
                request_id=str(trace.index),
                agent=agent,
                program=session_key(trace.program or trace.session, trace.tenant),
                client="kvmesh",
                tenant=trace.tenant,
                prompt_tokens=trace.input_tokens,
                expected_output_tokens=trace.output_tokens if self._tells_lengths else 0,
                final=self._tells_final and errand.request.is_last,
            )
        return turn

    def release(self, now: float) -> list[tuple[Errand, Decision | None]]:
        """Return those whose turn it is and where they go; None: no worker is left for it, or it
        would miss its targets.
        """
        released: list[tuple[Errand, Decision | None]] = []
        for one in self._binding.release(now, bool):
            errand, verdict = self._held.pop(one.request_id), one.verdict
            assert isinstance(verdict, Placed | NoWorkerError | UnattainableError), verdict
            if isinstance(verdict, UnattainableError):
                errand.refuse(verdict)
            decision = verdict.record.decision if isinstance(verdict, Placed) else None
            released.append((errand, decision))
        return released

    def attempt_ended(self, end: AttemptEnd, now: float) -> Attempt:
        """Learn how an attempt of this router's ended, and release its booking; return what its
        peers are told.

        Every attempt comes through here once, whether it was answered or not.
        """
        self.ended[end.worker, end.kind] += 1
        if self.unwatched is not None:
            self.unwatched.forget(end.request_id)
        booking = self.sequences.bookings.get(end.request_id)
        attempt = end.attempt(now - booking.booked_s if booking is not None else 0.0)
        self.scheduler.finish(end.request_id, now, attempt)
        if booking is not None and end.kind == "served":
            self._learn_pace(booking, end, now)
        turn = self._turns.pop(end.request_id, None)
        if turn is not None and self.governor is not None:
            self.governor.ended(turn, end.turn_end(), now)
            if self.touches is not None:
                self.touches.ended(turn, end.turn_end(), now)
        self._settle(now)
        return attempt

    def _learn_pace(self, booking: Booking, end: AttemptEnd, now: float) -> None:
        """Learn how long an answer took, as `core.dispatch` does."""
        speeds = self.scheduler.speeds
        if end.began_s is not None:
            speeds.answered(end.worker, end.output_tokens - 1, now - end.began_s)
        elif self._whole:
            elapsed_s = now - self.scheduler.decider.prefilled_s(booking)
            speeds.output(end.worker, end.output_tokens, elapsed_s)
            speeds.answered(end.worker, end.output_tokens, elapsed_s)

    def peer_ended(self, request_id: str, worker: WorkerId, attempt: Attempt, now: float) -> None:
        """Learn how an attempt of a peer's ended, also one that was over before it was told of."""
        booking = self.sequences.bookings.get(request_id)
        if booking is not None and booking.worker == worker:
            self.scheduler.finish(request_id, now, attempt)
        else:
            self.scheduler.workers.note(worker, attempt, now, request_id)
        self._settle(now)

    def _settle(self, now: float) -> None:
        if now >= self._settled_s + SETTLE_S:
            self._settled_s = now
            self.scheduler.workers.settle_prices(now)

    def demand(self, request_id: str) -> tuple[WorkerId, Demand] | None:
        """Return what to tell the peers of a request booked here; None when it has ended."""
        booking = self.sequences.bookings.get(request_id)
        if booking is None:
            return None
        hashes, graded = booking.hashes, b""
        if hashes is not None and not isinstance(hashes, bytes):
            graded = pack_hashes(grade(hashes.upto(ALL_BLOCKS), hashes.blocks))
        demand = Demand(
            prompt_tokens=booking.prompt_tokens,
            uncached_tokens=booking.uncached_tokens,
            expected_output_tokens=booking.expected_blocks * self.sequences.block_size,
            keys=booking.keys,
            streams=booking.streams,
            hashes=graded or None,
        )
        return booking.worker, demand
