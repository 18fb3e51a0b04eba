"""A request is decided at once, from what was scanned of its body: hashed, chosen, booked and
recorded in one compiled call.

It takes requests under policies that look at each worker alone, whatever else they wish; what it
has to be told of some of them beside their prompts are `Inputs`. Those that are held or were tried
before, and all where workers fetch from each other or a formula of one's own decides, have their
request made, which `Dispatch.decide` decides by the same core.
"""

from functools import partial
from math import inf
from typing import Final, Literal

import msgspec

from kvmesh._native import Placed, Scanned, WorkerState
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.cost.arms import Arm, Arms
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.wishes import Wishes
from kvmesh.core.members.worker_info import NO_THRESHOLDS
from kvmesh.core.routing.choice.courses import NO_WISHES, Course, has_no_own
from kvmesh.core.routing.choice.inputs import Asks, HopelessError, Inputs
from kvmesh.core.routing.choice.made import Maker
from kvmesh.core.routing.decision import UNRESTRICTED, RouteRequest
from kvmesh.core.routing.tenant_cost import price

_NOBODY: Final[tuple[WorkerState, ...]] = ()

MOST_PINNED: Final = 1024
"""Requests for a model at a session's worker that are kept; beyond it all are made anew."""


class ScannedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt: its body, its token ids, little-endian u32 (None: those of its bytes),
    the seed of its first block, and its LoRA adapter, "" for none.
    """

    scanned: Scanned
    packed: bytes | memoryview | None = None
    root: int = ROOT
    adapter: str = ""


class _Placement(msgspec.Struct, gc=False):
    """What a request tells besides its wishes; the inputs of one that has any. It is booked where
    the backlog is `bound_ms` at most.
    """

    asked: ScannedPrompt
    request_id: bytes
    tenant: str
    name: str | None
    output_tokens: int
    bound_ms: float
    affinity: int
    keep_s: int
    inputs: Inputs | None = None


class Placer:
    """Places what was scanned. `uses_caches`: prompts count."""

    def __init__(self, dispatch: Dispatch) -> None:
        scheduler, log = dispatch.scheduler, dispatch.log
        self._dispatch = dispatch
        self._scheduler = scheduler
        self._log = log
        self.uses_caches = scheduler.options.mode == "kv"
        self._followed: object = None
        self._arms: Arms | None = None
        self._pinned: dict[tuple[str, WorkerId | None], RouteRequest] = {}
        self._usable = False
        self._courses = scheduler.courses
        self._own = self._courses.of(NO_WISHES)
        self._decider = scheduler.decider
        self._decide = self._decider.decide

    def decide(
        self,
        asked: ScannedPrompt,
        request_id: bytes,
        wishes: Wishes,
        now: float,
        name: str | None = None,
    ) -> Placed | float | None:
        """Choose a worker, book the request there and record why; None: `Dispatch` has to.

        The predicted backlog, ms, of the worker chosen, where that is too long for the request to
        go at once: nothing is booked, and it is `tried`.
        `name` is that of its booking, where that is not its id. Raises `RequestError` for a formula
        or a weight that there is not.
        """
        scheduler, dispatch = self._scheduler, self._dispatch
        binding = dispatch.binding
        if scheduler.course is not self._followed:
            self._follow()
        asks = binding.bounded or wishes.targets is not None
        bound_ms = binding.bound_ms(wishes.tenant, wishes.targets) if asks else inf
        index, states = scheduler.overlaps.index, _NOBODY
        tiered = index is not None and len(index.tiers) > 1
        unlike = not self._usable or (tiered and scheduler.overlaps.has_lookahead())
        if bound_ms is None or unlike or scheduler.workers.fetchers:
            return None
        output = -1 if wishes.output_tokens is None else wishes.output_tokens
        session = wishes.session if scheduler.sessions is not None else ""
        inputs = None
        if tiered or asked.adapter or wishes.targets is not None or self._arms is not None:
            inputs = self._inputs_of(asked, name or request_id.decode("latin-1"), wishes, now)
        asking = _Placement(
            *(asked, request_id, wishes.tenant, name, output, bound_ms),
            *(wishes.affinity, wishes.keep_s, inputs),
        )
        plain = not (inputs or session or wishes.chooses)
        if plain and (self.uses_caches or self._counts(self._own)):
            states = scheduler.workers.plain(asked.scanned.model, now)
        placed: Placed | float | None
        if states:
            placed = self._place(asking, self._own, states, states, now)
        else:
            placed = self._choose(asking, wishes, session, now)
        if placed is None or isinstance(placed, int | float):
            return placed
        if not plain:
            self._note_booked(placed, inputs, session, now)
        if binding.bounded:
            self._charge(placed, wishes.tenant)
        if dispatch.follows_events:
            dispatch.check(placed, now)
        return placed

    def _note_booked(self, placed: Placed, inputs: Inputs | None, session: str, now: float) -> None:
        """Note what else becomes of a booking than its load."""
        if inputs is not None:
            inputs.booked(placed.record, placed.booking)
        if session and (sessions := self._scheduler.sessions) is not None:
            sessions.bind(session, WorkerId(placed.record.worker), now)

    def _inputs_of(self, asked: ScannedPrompt, name: str, wishes: Wishes, now: float) -> Inputs:
        """Return the inputs of a request besides its prompt."""
        scheduler, targets = self._scheduler, wishes.targets
        if targets is not None:
            scheduler.slo.arrive(name, targets, now)
        streams = asked.scanned.streams
        asks = Asks(name, targets, wishes.priority, asked.adapter, wishes.session, streams)
        made = Maker(self._own.pricing)
        inputs = Inputs(scheduler.known, asks, made, now, hopeless=HopelessError)
        mode = wishes.mode or scheduler.options.mode
        if self._arms is not None and mode == "kv" and has_no_own(wishes):
            inputs.try_arms(self._arms, partial(self._arm_course, made, wishes))
        return inputs

    def _arm_course(self, made: Maker, wishes: Wishes, arm: Arm) -> object:
        """Return what the core decides a request of an arm by."""
        course = self._courses.of(wishes, arm)
        return (course.kept if made.kept else course).native

    def _choose(
        self, asking: _Placement, wishes: Wishes, session: str, now: float
    ) -> Placed | float | None:
        """Do as `decide` for a request that asks for something of its worker."""
        workers = self._scheduler.workers
        course = self._own if wishes.has_no_policy() else self._courses.of(wishes)
        named = wishes.pinned_worker is not None or wishes.mode != "direct"
        if course.asks is not None or not named or not self._counts(course):
            return None
        if workers.thresholds is not NO_THRESHOLDS:
            # Who is busy depends on prefills whose end nobody saw.
            self._scheduler.sequences.settle(now, self._scheduler.speeds.ms_per_token)
        model = asking.asked.scanned.model
        everyone, states = workers.cohort(model, now)
        if session and wishes.pinned_worker is None:
            kept = self._keep(asking, wishes, course, everyone, now)
            if kept is not False:
                return kept
        if not states or wishes.restriction() != UNRESTRICTED:
            states = self._allowed(wishes, model, wishes.pinned_worker, now)
        if not states:
            return None
        states = everyone if len(states) == len(everyone) else states
        try:
            placed = self._place(asking, course, everyone, states, now)
        except HopelessError:
            return None
        if wishes.overridden and placed is not None and not isinstance(placed, int | float):
            request = wishes.request(model)
            placed.record.overridden = request.departs_from(self._scheduler.options)
        return placed

    def _counts(self, course: Course) -> bool:
        """Return whether prompts are looked at, or nobody minds that they are not."""
        return course.uses_caches or (self._log.ring is None and not self._dispatch.binding.bounded)

    def _allowed(
        self, wishes: Wishes, model: str, pinned: WorkerId | None, now: float
    ) -> tuple[WorkerState, ...]:
        """Return the states of those that may take a request with such wishes, at `pinned` where
        that is one. O(1) for what was wished before.
        """
        free = wishes.restriction() == UNRESTRICTED
        request = self._pinned.get((model, pinned)) if free else None
        if request is None:
            request = msgspec.structs.replace(wishes.request(model), pinned_worker=pinned)
            if free:
                if len(self._pinned) >= MOST_PINNED:
                    self._pinned.clear()
                self._pinned[model, pinned] = request
        return self._scheduler.workers.wished(request, now)

    def _keep(
        self,
        asking: _Placement,
        wishes: Wishes,
        course: Course,
        everyone: tuple[WorkerState, ...],
        now: float,
    ) -> Placed | float | Literal[False] | None:
        """Do as `decide` at the worker of a session; False: the session may move, None: `Dispatch`
        has to say why it may not.
        """
        sessions = self._scheduler.sessions
        assert sessions is not None, "a session is only asked about where there are some"
        worker = sessions.find(wishes.session, now)
        if worker is None:
            return False
        moved = None if sessions.hard else False
        states = self._allowed(wishes, asking.asked.scanned.model, worker, now)
        if not states:
            return moved
        bound_ms = asking.bound_ms
        asking.bound_ms = min(sessions.slack_ms, bound_ms)
        try:
            placed = self._place(asking, course.kept, everyone, states, now, whole=False)
        except HopelessError:
            return moved
        finally:
            asking.bound_ms = bound_ms
        return False if isinstance(placed, int | float) and sessions.moves(placed) else placed

    def _place(
        self,
        asking: _Placement,
        course: Course,
        everyone: tuple[WorkerState, ...],
        states: tuple[WorkerState, ...],
        now: float,
        *,
        whole: bool = True,
    ) -> Placed | float | None:
        """Choose among `states`, some of `everyone`, and book unless the backlog is too long.
        `whole` False: it is never of interest what the others cost.
        """
        log, inputs, draws = self._log, asking.inputs, course.draws
        if inputs is not None:
            inputs.made.pricing, inputs.made.kept = course.pricing, course.is_kept
            draws = draws or (course.priced and inputs.allow is not None)
        whole = (log.may_weigh_all(now) or draws) and whole
        asked = asking.asked
        placed: Placed | float | None = self._decide(
            asked.scanned,
            asked.packed,
            asking.request_id,
            asking.tenant,
            everyone,
            now,
            whole,
            asking.name,
            course.native,
            states,
            asking.output_tokens,
            asking.bound_ms,
            asked.root,
            inputs,
            asking.affinity,
            asking.keep_s,
        )
        if placed is None or isinstance(placed, int | float):
            return placed
        if log.left_out is not None and (whole or len(states) == 1):
            placed.record.left_out = log.left_out(now)
        return placed

    def _charge(self, placed: Placed, tenant: str) -> None:
        """Charge a request that was asked about and need not be held."""
        placed.record.held_ms = 0.0
        uncached = placed.record.uncached_tokens
        self._dispatch.binding.charge(tenant, price(uncached, placed.expected_output_tokens))

    def _follow(self) -> None:
        """Decide by what the scheduler follows now, if that can be compiled."""
        scheduler, options = self._scheduler, self._scheduler.options
        self.uses_caches = options.mode == "kv"
        self._followed = scheduler.course
        own, self._arms = self._courses.of(NO_WISHES), scheduler.arms
        followed = [own]
        if self._arms is not None and (arm := self._arms.find()) is not None:
            followed.append(self._courses.of(NO_WISHES, arm))
        self._usable = options.mode != "direct" and all(one.asks is None for one in followed)
        if not self._usable:
            return
        self._own = own
        self._decider.resize(options.block_size)
        self._decider.follow(own.native)
