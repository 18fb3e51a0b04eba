"""Which worker takes a request: asked of the compiled core, nothing is booked."""

from typing import Final, NamedTuple

from kvmesh._native import Decider, Record, WorkerState
from kvmesh.core.blocks.hashing import ALL_BLOCKS, BlockHashes
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.routing.choice.courses import (
    Course,
    Courses,
    FormulaFailedError,
    has_no_own,
)
from kvmesh.core.routing.choice.inputs import Inputs, Known, asks_of
from kvmesh.core.routing.choice.made import Maker
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterMode
from kvmesh.errors import NoWorkerError

_NO_ID: Final = b""


class _Asked(NamedTuple):
    """Among whom to choose, `states` of a `cohort`, and how."""

    cohort: tuple[WorkerState, ...]
    states: tuple[WorkerState, ...]
    whole: bool
    likeliest: bool


class Choice(NamedTuple):
    """What was chosen for a request, by what, and with which inputs."""

    record: Record
    course: Course
    inputs: Inputs

    @property
    def decision(self) -> Decision:
        """Return it as people read it, made when it is first asked for."""
        return self.record.decision


class Chooser:
    """Chooses a worker by what is known of all. `mode` decides unless a request names another."""

    def __init__(self, mode: RouterMode, courses: Courses, known: Known, decider: Decider) -> None:
        self._mode = mode
        self._courses = courses
        self._known = known
        self._decider = decider

    def choose(
        self, request: RouteRequest, now: float, *, whole: bool = False, likeliest: bool = False
    ) -> Choice:
        """Return the choice for `request`; `whole` keeps every candidate. `likeliest`: of equals
        the first, and nothing is drawn.

        Raises `NoWorkerError` with the reasons, `RequestError` as `Courses.pricing`.
        """
        known, courses = self._known, self._courses
        # Who is busy depends on prefills whose end nobody saw.
        known.sequences.settle(now, known.speeds.ms_per_token)
        cohort = known.workers.all_states(now)
        states = known.workers.wished(request, now)
        if not states:
            cohort = states = known.workers.states(known.workers.eligible(request, now))
        mode = request.mode or self._mode
        if mode == "direct" and request.pinned_worker is None:
            raise NoWorkerError(
                f"request {request.request_id}: mode direct needs a worker to be named: send "
                "x-kvmesh-worker-id, or kvmesh.worker in the body",
                unnamed=True,
            )
        arm, arms = None, courses.arms
        if arms is not None and mode == "kv" and has_no_own(request):
            arm = arms.find()
        course = courses.of(request, arm)
        made = Maker(course.pricing, request_id=request.request_id)
        made.arm, made.unforeseen = arm, request.unforeseen
        inputs = Inputs(known, asks_of(request), made, now, whole=request)
        asked = _Asked(cohort, cohort if len(states) == len(cohort) else states, whole, likeliest)
        own = None if course.asks is None else course.asks.own
        if own is None or not own.off:
            try:
                return self._ask(request, inputs, course, asked)
            except FormulaFailedError:
                assert own is not None, "only formulas of one's own fail"
                asked = asked._replace(whole=True)
        course = courses.instead(request)
        made.pricing, made.instead_of = course.pricing, own.problem
        return self._ask(request, inputs, course, asked)

    def _ask(self, request: RouteRequest, inputs: Inputs, course: Course, asked: _Asked) -> Choice:
        """Have the compiled core choose by a course."""
        hashes, each = request.hashes, course.draws
        if course.asks is not None:
            course.asks.made = inputs.made
            # What such a formula gave one worker says nothing without the others.
            each = each or course.priced
        each = each or (course.priced and request.targets is not None)
        record = self._decider.choose(
            _NO_ID,
            hashes,
            hashes.upto(ALL_BLOCKS if course.uses_caches else 0),
            hashes.ids if isinstance(hashes, BlockHashes) else None,
            min(request.prompt_tokens, MOST_TOKENS),
            min(request.expected_output_tokens, MOST_TOKENS),
            asked.cohort,
            asked.states,
            inputs.now,
            asked.whole or each,
            course.native,
            inputs,
            request.prefilled,
            asked.likeliest,
            request.affinity,
        )
        return Choice(record, course, inputs)
