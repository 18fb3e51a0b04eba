"""The decision in one synchronous turn: overlaps, loads, cost, choice, booking."""

import msgspec

from kvmesh._native import ActiveSequences, Booking, Decider
from kvmesh.bounds import clamped
from kvmesh.core.admission.ledger import DEFAULT_QUANTUM, Ledger
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import ALL_BLOCKS, Hashes
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.selection import Random
from kvmesh.core.cost.terms import Brought, Candidate
from kvmesh.core.health.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.members.membership import Membership
from kvmesh.core.overlap.overlaps import HeardIndex, OverlapView, RoutedIndex, TieredIndex
from kvmesh.core.programs.governor import Governor
from kvmesh.core.rollout.arms import Arms
from kvmesh.core.routing.choice.chooser import Chooser
from kvmesh.core.routing.choice.courses import Courses
from kvmesh.core.routing.choice.inputs import Known
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.fetching import FetchPlanner, PendingFetches
from kvmesh.core.routing.output_lengths import new_lengths
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.sessions import Sessions
from kvmesh.core.routing.slo.judge import SloJudge
from kvmesh.core.routing.slo.tracker import SloTracker
from kvmesh.core.workers.fetch_times import FetchTimes
from kvmesh.core.workers.late_prompts import LatePrompts
from kvmesh.core.workers.loads import MOST_TOKENS, Demand
from kvmesh.core.workers.sequences import OVERDUE
from kvmesh.core.workers.silent_growth import UnseenWork, grow_unseen
from kvmesh.core.workers.speeds import new_speeds
from kvmesh.errors import NoWorkerError


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    decisions: int
    refused: int
    overlap_blocks: int
    request_blocks: int


class Scheduler:
    """Chooses a worker per request and books it in the same turn; deterministic given `rng`.

    `membership` says who is alive, `workers` adds what they say of themselves.
    `index` is the event-fed view (None without events), `routed` the view fed by own decisions.
    A peer replica's bookings go straight into `sequences` under the peer's name as owner; its
    first tokens, growth and ends may come through here, so that speeds are learned from all.
    With `sessions`, those of a session stay at its worker. `lengths` are for whoever asks and
    teaches it, and so are the `ledger` of what tenants were served and the `governor`, which says
    which programs may take turns; None: none has to wait. `slo` foretells and counts what became
    of requests with targets, `judge` refuses some.
    `course` is another object whenever something else is to be decided by, or with other blocks.
    `trace` makes every decision carry all candidates, at 4 us each, for the debug log.
    """

    def __init__(
        self,
        options: RouterOptions,
        rng: Random,
        *,
        membership: Membership,
        sequences: ActiveSequences,
        index: TieredIndex | None = None,
        routed: RoutedIndex | None = None,
    ) -> None:
        self.options = options
        self.trace = False
        self.sequences = sequences
        self.speeds = new_speeds()
        self._health = membership.health
        self.fetch_times = FetchTimes(options.tier_weights, fixed=options.fixed_tiers)
        self.workers = WorkerRegistry(membership, sequences, self.speeds, self.fetch_times)
        self.overlaps = OverlapView(
            index,
            routed,
            self.workers.distrusted,
            predict_ttl_s=options.predict_ttl_s,
            approx_ttl_s=options.approx_ttl_s,
        )
        self.workers.sizes = self.overlaps.cached_blocks
        self.late = LatePrompts(self.workers.late, sequences.bookings, self.overlaps.record)
        self.sessions: Sessions | None = None
        self.governor: Governor | None = None
        self.lengths = new_lengths(options.block_size)
        self.ledger = Ledger(DEFAULT_QUANTUM)
        self.rng = rng
        self.course: object = object()
        self.planner = FetchPlanner(self.workers, sequences, self.speeds, self.overlaps)
        self.fetches = PendingFetches(self.fetch_times, self.speeds)
        self.slo = SloTracker()
        self.courses = Courses(options, rng)
        self.known = Known(
            self.workers, self.overlaps, sequences, self.speeds, self.planner, self.slo
        )
        self.decider = Decider(
            sequences=sequences,
            speeds=self.speeds,
            lengths=self.lengths,
            distrusted=self.workers.distrusted,
            out=self._health.out,
            health=self._health,
            random=rng.random,
            replica=options.replica,
            routed=routed,
            index=index,
            late=self.late,
            late_workers=self.workers.late,
            late_waiting=self.late.waiting,
            smallest_tree_ties=options.smallest_tree_ties,
        )
        self._chooser = Chooser(options.mode, self.courses, self.known, self.decider)
        self.judge = SloJudge(self.slo)
        self._decisions = 0
        self._refused = 0
        self._overlap_blocks = 0
        self._request_blocks = 0

    def follow(self, policy: Pricing, arms: Arms | None) -> None:
        """Decide by another formula and weights from now on, or by the two of `arms`."""
        self.courses.follow(policy, arms)
        self.course = object()

    def listen(self, heard: HeardIndex) -> None:
        """Keep in `heard`, from now on, what other replicas tell of their decisions."""
        self.overlaps.listen(heard)
        self.decider.listen(heard)

    @property
    def arms(self) -> Arms | None:
        """Return the two policies on trial."""
        return self.courses.arms

    @property
    def policy(self) -> Pricing:
        """Return the formula of mode kv and its weights: the baseline's while two are on trial."""
        return self.courses.policy

    def pricing(self, request: RouteRequest) -> Pricing:
        """Return formula and weights of a request. Raises `RequestError` for what there is not."""
        return self.courses.pricing(request)

    def check(self, request: RouteRequest) -> None:
        """Raise `RequestError` if the request names a formula or a weight that there is not."""
        self.courses.pricing(request)

    def schedule(self, request: RouteRequest, now: float) -> Decision:
        """Choose a worker and book the request there. Raises `NoWorkerError` with the reasons,
        `UnattainableError` for one that would miss its targets everywhere.
        """
        decision = self._choose(request, now)
        self._book(request, decision, now)
        return decision

    def schedule_within(
        self, request: RouteRequest, now: float, max_backlog_ms: float
    ) -> Decision | None:
        """Do as `schedule`, but book nothing and return None while the chosen worker's predicted
        backlog is longer than `max_backlog_ms`: hold the request and ask again.
        """
        decision = self._choose(request, now)
        if decision.chosen.wait_ms > max_backlog_ms:
            return None
        self._book(request, decision, now)
        return decision

    def wait_ms(self, worker: WorkerId, now: float) -> float:
        """Return a worker's predicted backlog, as it counts for a request."""
        speeds = self.speeds
        per_token, step_tokens = speeds.ms_per_token(worker), speeds.steps.step_tokens
        return self.sequences.loads(worker).wait_ms(per_token, now, step_tokens)

    def with_room(self, now: float, max_backlog_ms: float) -> set[WorkerId]:
        """Return the workers whose predicted backlog is `max_backlog_ms` at most. O(workers)."""
        everyone = self.workers.everyone(now)
        return {one for one in everyone if self.wait_ms(one, now) <= max_backlog_ms}

    def explain(self, request: RouteRequest, now: float) -> Decision:
        """Return the likeliest decision with every candidate weighed; change nothing."""
        likeliest = msgspec.structs.replace(request, temperature=0.0)
        if request.session and self.sessions is not None:
            kept = self._keep(self.sessions, likeliest, now, likeliest=True)
            if kept is not None:
                return kept
        return self._chooser.choose(likeliest, now, whole=True, likeliest=True)

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request's prefill is done."""
        if self.slo.open:
            self.slo.first_token(request_id, now)
        live = self.sequences.bookings.get(request_id)
        expected = None if live is None else live.hashes
        booking = self.sequences.first_token(request_id, now)
        if booking is not None:
            self._believe_served(booking.worker, expected, now)
            self._health.began(booking.worker, now)
            if self.late.waiting:
                self.late.begin(booking.worker, now)
            if self.prepared_first(booking, now):
                return
            self.speeds.first_token(booking.worker, booking.service_tokens, booking.service_s, now)

    def prepared_first(self, booking: Booking, now: float) -> bool:
        """Learn from the first token of a request whose worker brought or loaded something first;
        False for one whose worker did not: its time tells how fast the worker computes.
        """
        if self.fetches and self.fetches.first_token(booking, now):
            return True
        return self.workers.adapters.loaded(booking.request_id, booking.service_s * 1000.0)

    def assume_first_token(self, request_id: str, now: float) -> None:
        """Take a request's prefill for done that nobody saw end: it teaches nothing."""
        booking = self.sequences.first_token(request_id, now)
        if booking is not None and self.late.waiting:
            self.late.begin(booking.worker, now)

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note a request's output so far, in tokens. Once per block of output is often enough."""
        booking = self.sequences.bookings.get(request_id)
        if booking is not None:
            tokens, elapsed_s = output_tokens - booking.output_tokens, now - booking.output_s
            if not booking.prefilling:
                self.speeds.output(booking.worker, tokens, elapsed_s)
            self.sequences.grow(request_id, output_tokens, now)

    def grow_unseen(self, now: float) -> None:
        """Let answers that are not streamed have grown, for nobody sees them grow; once a second is
        often enough. O(bookings).
        """
        speeds = self.speeds
        self.sequences.settle(now, speeds.ms_per_token)
        work = UnseenWork(speeds.ms_per_output_token, self.workers.used_blocks)
        grow_unseen(self.sequences, work, now)

    def finish(self, request_id: str, now: float, attempt: Attempt = SERVED) -> Booking | None:
        """Release a request and take what its `attempt` showed of the worker; return its booking
        the first time, else None.

        Only what was served teaches speeds and lengths. What the worker was expected to cache of a
        prompt is believed from its service on, and no longer unless it was served, or showed a
        first token.
        """
        self.workers.adapters.ended(request_id)
        on_device = self.fetches.ended(request_id) if self.fetches else None
        booking = self.sequences.finish(request_id)
        if booking is None:
            return None
        worker = booking.worker
        if attempt.verdict is Verdict.SERVED:
            self._believe_served(worker, booking.hashes, now)
            self.slo.served(request_id, booking.output_tokens, now)
        if self.late.waiting:
            self.late.end(booking, now, served=attempt.verdict is Verdict.SERVED)
        if attempt.verdict is Verdict.SERVED:
            if not (booking.prefilling and booking.streams):
                self.speeds.finished(worker, now - booking.booked_s, booking.output_tokens)
        elif booking.hashes is not None:
            cached_tokens = booking.prompt_tokens - booking.uncached_tokens
            if on_device is not None:
                cached_tokens = on_device
            self.overlaps.retract(worker, booking.hashes, cached_tokens // self.options.block_size)
        if attempt.verdict is Verdict.PROMPT:
            self.workers.forgive(request_id, now)
        if attempt is not SERVED or not self._health.served(worker, now):
            self.workers.note(worker, attempt, now, request_id)
        return booking

    def prefilled_s(self, booking: Booking) -> float:
        """Return when the prefill of one that has just been released is taken to have ended.

        Of whole answers nobody sees that: it ends in its time, whether it was looked at or not.
        """
        if not booking.prefilling:
            return booking.output_s
        began_s = max(self.sequences.loads(booking.worker).progress_s, booking.booked_s)
        ms_per_token = self.speeds.ms_per_token(booking.worker)
        return began_s + OVERDUE * ms_per_token / 1000.0 * booking.uncached_tokens

    def resize(self, block_size: int) -> None:
        """Decide by blocks of another size from now on; bookings keep theirs to their end."""
        self.options = msgspec.structs.replace(self.options, block_size=block_size)
        self.decider.resize(block_size)
        self.course = object()
        self.sequences.resize(block_size)
        self.lengths.resize(block_size)

    def remove_worker(self, worker: WorkerId) -> list[Booking]:
        """Forget a worker that left; return the bookings released with it."""
        self.workers.remove(worker)
        self.late.remove_worker(worker)
        self.overlaps.remove_worker(worker)
        self.speeds.remove_worker(worker)
        released = self.sequences.remove_worker(worker)
        for booking in released:
            self.fetches.ended(booking.request_id)
            self.workers.adapters.ended(booking.request_id)
        return released

    def statistics(self) -> SchedulerStatistics:
        """Return the counts since the start."""
        decider = self.decider
        return SchedulerStatistics(
            self._decisions + decider.decisions,
            self._refused,
            self._overlap_blocks + decider.overlap_blocks,
            self._request_blocks + decider.request_blocks,
        )

    def _believe_served(
        self, worker: WorkerId, expected: Hashes | bytes | None, now: float
    ) -> None:
        """Believe what a booking was expected to cache from its service on: what was believed since
        it was sent may have been revoked with another request, or be over.

        Where events confirm it they say so by now, and later what was evicted: to believe it anew
        would hide that.
        """
        if expected is None or isinstance(expected, bytes) or self.overlaps.confirms(worker):
            return
        self.overlaps.record(worker, expected, now)

    def _choose(self, request: RouteRequest, now: float) -> Decision:
        """Choose a worker. Of the targets of a request with excluded workers, which failed it, as
        much is met as can be.
        """
        if request.targets is None:
            return self._decide(request, now)
        self.slo.arrive(request.request_id, request.targets, now)
        decision = self._decide(request, now)
        best = decision.best_forecast
        if best is None or request.excluded or not self.judge.is_hopeless(best, request.priority):
            return decision
        self._refused += 1
        leaves_ms = self.speeds.residence_ms(best.worker)
        raise self.judge.refuse(request.request_id, request.targets, best, leaves_ms)

    def _decide(self, request: RouteRequest, now: float) -> Decision:
        try:
            if request.session and self.sessions is not None:
                kept = self._keep(self.sessions, request, now)
                if kept is not None:
                    return kept
            return self._chooser.choose(request, now, whole=self.trace)
        except NoWorkerError:
            self._refused += 1
            raise

    def _keep(
        self, sessions: Sessions, request: RouteRequest, now: float, *, likeliest: bool = False
    ) -> Decision | None:
        """Return the decision for the session's worker; None when the session may move.

        Raises `NoWorkerError` when a hard session's worker is only busy.
        """
        worker = sessions.find(request.session, now)
        if worker is None or request.pinned_worker is not None:
            return None
        hard = sessions.options.affinity == "hard"
        pinned = msgspec.structs.replace(request, pinned_worker=worker)
        try:
            decision = self._chooser.choose(pinned, now, likeliest=likeliest)
        except NoWorkerError as error:
            if hard and error.busy:
                raise
            return None
        if not hard and (
            decision.chosen.wait_ms > sessions.options.slack_ms
            or self.judge.is_hopeless(decision.forecast, request.priority)
        ):
            return None
        return msgspec.structs.replace(decision, kept=True)

    def _book(self, request: RouteRequest, decision: Decision, now: float) -> None:
        worker, hashes = decision.worker, request.hashes
        if request.targets is not None:
            self.slo.sent(request.request_id, request.targets, decision.forecast, now)
        kv = self.options.mode == "kv" or request.mode == "kv"
        counted, sequences = None, self.sequences
        late = kv and self.late.is_late(worker, sequences.loads(worker))
        if kv:
            counted = self.overlaps.record(
                worker, hashes, now, approximate=request.approximate, late=late
            )
        known = hashes.upto(ALL_BLOCKS if kv else 0) if counted is None else counted
        demand = Demand(
            prompt_tokens=request.prompt_tokens,
            uncached_tokens=_computed_tokens(decision.chosen),
            expected_output_tokens=request.expected_output_tokens,
            keys=tuple(sharing_keys(known)),
            streams=request.streams,
            hashes=None if counted is None else hashes,
            turn=decision.policy == "round-robin",
        )
        booked = sequences.add(request.request_id, worker, demand, now)
        if late and booked and counted is not None:
            self.late.add(sequences.bookings[request.request_id])
        if decision.brought is not None:
            self.bring(request.request_id, decision.chosen, decision.brought)
        if request.adapter:
            self.load_adapter(
                request.request_id, request.adapter, decision.chosen, streams=request.streams
            )
        if self._health.out:
            self._health.chosen(worker, now, request.request_id)
        if request.session and self.sessions is not None:
            self.sessions.bind(request.session, worker, now)
        if decision.arm is not None and self.courses.arms is not None:
            self.courses.arms.learn(request.request_id, request.session, hashes)
        self._decisions += 1
        self._overlap_blocks += decision.overlap_blocks
        self._request_blocks += decision.total_blocks

    def bring(self, request_id: str, chosen: Candidate, brought: Brought) -> None:
        """Note that a request was sent whose worker brings cached blocks to its device first."""
        self.fetches.booked(
            request_id,
            chosen.worker,
            brought,
            prompt=chosen.prompt_tokens,
            held=chosen.overlap_blocks * chosen.block_size,
        )

    def load_adapter(
        self, request_id: str, adapter: str, chosen: Candidate, *, streams: bool
    ) -> None:
        """Note that the worker holds the request's adapter ready from now on."""
        adapters = self.workers.adapters
        adapters.use(chosen.worker, adapter)
        if chosen.adapter_ms and streams:
            own_tokens = _computed_tokens(chosen) + chosen.step_tokens
            alone = not chosen.prefill_tokens
            usual_ms = chosen.ms_per_token * own_tokens if alone else None
            adapters.load(request_id, usual_ms)


def _computed_tokens(chosen: Candidate) -> int:
    """Return the tokens of a prompt that are computed: not those that loading an adapter costs as
    much as, which teach nothing of the cache.
    """
    if not chosen.adapter_ms:
        return chosen.uncached_tokens
    return chosen.uncached_tokens - load_tokens(chosen.adapter_ms, chosen.ms_per_token)


def load_tokens(adapter_ms: float, ms_per_token: float) -> int:
    """Return the prompt tokens that could be computed while an adapter is loaded."""
    return clamped(adapter_ms / ms_per_token, 0, MOST_TOKENS) if ms_per_token > 0.0 else 0
