"""The decision in one synchronous turn: overlaps, loads, cost, choice, booking."""

import msgspec

from kvmesh._native import ActiveSequences, Approx, Booking, Decider, Placed
from kvmesh.core.admission.ledger import DEFAULT_QUANTUM, Ledger
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import ALL_BLOCKS
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.selection import Random
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.overlaps import OverlapView
from kvmesh.core.members.block_sizes import scaled
from kvmesh.core.members.fetch_times import FetchTimes
from kvmesh.core.members.late_prompts import LatePrompts
from kvmesh.core.members.loads import new_speeds
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.members.silent_growth import UnseenWork, grow_unseen
from kvmesh.core.programs.governor import Governor
from kvmesh.core.routing.choice.chooser import Choice, Chooser
from kvmesh.core.routing.choice.courses import Courses
from kvmesh.core.routing.choice.inputs import Known
from kvmesh.core.routing.choice.slo_judge import SloJudge
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.fetching import FetchPlanner, PendingFetches
from kvmesh.core.routing.output_lengths import new_lengths
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.sessions import Sessions
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
        index: KvIndex | None = None,
        routed: Approx | None = None,
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
            block_size=options.block_size,
            predict_ttl_s=options.predict_ttl_s,
            approx_ttl_s=options.approx_ttl_s,
        )
        self.overlaps.own_tokens = self.workers.own_tokens
        self.workers.sizes = self.overlaps.cached_blocks
        self.workers.bound = self.overlaps.bound
        self.late = LatePrompts(
            self.workers.late, sequences.bookings, self.overlaps.record, self.overlaps.receive
        )
        self.sessions: Sessions | None = None
        self.governor: Governor | None = None
        self.lengths = new_lengths(options.block_size)
        self.ledger = Ledger(DEFAULT_QUANTUM)
        self.rng = rng
        self.course: object = object()
        self.planner = FetchPlanner(self.workers, sequences, self.speeds, self.overlaps)
        self.fetches = PendingFetches(self.fetch_times, self.speeds)
        self.slo = SloTracker()
        self.judge = SloJudge(self.slo)
        self.courses = Courses(options, rng)
        self.known = Known(
            *(self.workers, self.overlaps, sequences, self.speeds, self.planner),
            *(self.fetches, self.slo, self.judge),
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
            predict_ttl_s=options.predict_ttl_s,
            approx_ttl_s=options.approx_ttl_s,
        )
        self._chooser = Chooser(options.mode, self.courses, self.known, self.decider)
        self._refused = 0

    def follow(self, policy: Pricing, arms: Arms | None) -> None:
        """Decide by another formula and weights from now on, or by those of `arms`."""
        self.courses.follow(policy, arms)
        self.course = object()

    def listen(self, hints: Approx) -> None:
        """Keep in `hints`, from now on, what other replicas tell of their decisions."""
        self.overlaps.listen(hints)
        self.decider.listen(hints)

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

    def schedule(self, request: RouteRequest, now: float) -> Placed:
        """Choose a worker and book the request there. Raises `NoWorkerError` with the reasons,
        `UnattainableError` for one that would miss its targets everywhere.
        """
        return self._book(self._choose(request, now), request, now)

    def schedule_within(
        self, request: RouteRequest, now: float, max_backlog_ms: float
    ) -> Placed | None:
        """Do as `schedule`, but book nothing and return None while the chosen worker's predicted
        backlog is longer than `max_backlog_ms`: hold the request and ask again.
        """
        choice = self._choose(request, now)
        if choice.decision.chosen.wait_ms > max_backlog_ms:
            return None
        return self._book(choice, request, now)

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
                return kept.decision
        return self._chooser.choose(likeliest, now, whole=True, likeliest=True).decision

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request's prefill is done."""
        if self.slo.open:
            self.slo.first_token(request_id, now)
        booking = self.decider.begin(request_id, now)
        if booking is not None and not self.known.prepared_first(booking, now):
            self.speeds.first_token(booking.worker, booking.service_tokens, booking.service_s, now)

    def is_late(self, worker: WorkerId) -> bool:
        """Return whether a prompt that is sent to a worker now is cached there only later, which
        its events will tell.
        """
        score = self.workers.late.get(worker)
        if score is None or not self.overlaps.confirms(worker):
            return False
        return score < 0 or self.sequences.loads(worker).waiting_requests > 0

    def assume_first_token(self, request_id: str, now: float) -> None:
        """Count a request's prefill as ended, though no event showed it: no speed is learned from
        it.
        """
        booking = self.sequences.first_token(request_id, now)
        if booking is not None and self.late.waiting:
            self.late.begin(booking.worker, now)

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note a request's output so far, in tokens. Once per block of output is often enough."""
        self.decider.grow(request_id, output_tokens, now)

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
        served = attempt.verdict is Verdict.SERVED
        return self._ended(request_id, self.decider.release(request_id, served, now), attempt, now)

    def release(self, placed: Placed, attempt: Attempt, now: float) -> Booking | None:
        """Do as `finish` for a request that was decided here."""
        booking = self.decider.free(placed, attempt.verdict is Verdict.SERVED, now)
        return self._ended(placed.request_id, booking, attempt, now)

    def _ended(
        self, request_id: str, booking: Booking | None, attempt: Attempt, now: float
    ) -> Booking | None:
        """Take what an attempt showed of the worker, and of what it has cached."""
        self.workers.adapters.ended(request_id)
        on_device = self.fetches.ended(request_id) if self.fetches else None
        if booking is None:
            return None
        worker = booking.worker
        if attempt.verdict is Verdict.SERVED:
            self.slo.served(request_id, booking.output_tokens, now)
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

    def resize(self, block_size: int) -> None:
        """Decide by blocks of another size from now on; bookings keep theirs to their end."""
        before = self.options.block_size
        self.options = msgspec.structs.replace(self.options, block_size=block_size)
        self.decider.resize(block_size)
        self.course = object()
        self.sequences.resize(block_size)
        self.overlaps.block_size = block_size
        for state in self.workers.known.values():
            state.report = scaled(state.report, before, block_size)
            self.workers.size_up(state)
        self.lengths.resize(block_size)

    def look_for(self, sizes: tuple[int, ...]) -> None:
        """Look for what workers cache in blocks of these sizes, too, in tokens: 8 at most.

        Prompts whose token ids are kept are hashed once for each. Raises `ValueError`.
        """
        self.decider.look_for(sizes)
        self.overlaps.sizes = sizes

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
            decider.decisions, self._refused, decider.overlap_blocks, decider.request_blocks
        )

    def _choose(self, request: RouteRequest, now: float) -> Choice:
        """Choose a worker. Of the targets of a request with excluded workers, which failed it, as
        much is met as can be.
        """
        if request.targets is not None:
            self.slo.arrive(request.request_id, request.targets, now)
        try:
            choice = None
            if request.session and self.sessions is not None:
                choice = self._keep(self.sessions, request, now)
            if choice is None:
                choice = self._chooser.choose(request, now, whole=self.trace)
        except NoWorkerError:
            self._refused += 1
            raise
        best = None if request.targets is None else choice.decision.best_forecast
        if best is None or request.excluded or not self.judge.is_hopeless(best, request.priority):
            return choice
        assert request.targets is not None, "they were forecast"
        self._refused += 1
        leaves_ms = self.speeds.residence_ms(best.worker)
        raise self.judge.refuse(request.request_id, request.targets, best, leaves_ms)

    def _keep(
        self, sessions: Sessions, request: RouteRequest, now: float, *, likeliest: bool = False
    ) -> Choice | None:
        """Return the choice of the session's worker; None when the session may move.

        Raises `NoWorkerError` when a hard session's worker is only busy.
        """
        worker = sessions.find(request.session, now)
        if worker is None or request.pinned_worker is not None:
            return None
        pinned = msgspec.structs.replace(request, pinned_worker=worker)
        try:
            choice = self._chooser.choose(pinned, now, likeliest=likeliest)
        except NoWorkerError as error:
            if sessions.hard and error.busy:
                raise
            return None
        choice.inputs.made.kept = True
        decision = choice.decision
        hopeless = self.judge.is_hopeless(decision.forecast, request.priority)
        moves = sessions.moves(decision.chosen.wait_ms, hopeless=hopeless)
        return None if moves else choice

    def _book(self, choice: Choice, request: RouteRequest, now: float) -> Placed:
        record, course, inputs = choice
        hashes = request.hashes.upto(ALL_BLOCKS if course.uses_caches else 0)
        followed = inputs if inputs.are_followed() else None
        placed = self.decider.book(record, request, hashes, course.native, followed, now)
        record.estimated = request.estimated
        if followed is not None:
            followed.booked(record, placed.booking)
        if request.session and self.sessions is not None:
            self.sessions.bind(request.session, record.worker, now)
        return placed
