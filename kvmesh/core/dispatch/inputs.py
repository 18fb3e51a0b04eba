"""What becomes of a request with inputs besides its prompt, once it is booked."""

from collections.abc import Callable, Sequence

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.rollout.arms import Arm, Arms
from kvmesh.core.routing.choice.inputs import Inputs
from kvmesh.core.routing.choice.made import Maker, Terms
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler


class HopelessError(Exception):
    """A request would miss its targets at every worker: who counts refusals has to refuse it."""


class BookedInputs(Inputs):
    """The inputs of a request that the compiled core decides and books in one call.

    `allow` raises `HopelessError` where its targets would be missed at every worker.
    """

    __slots__ = ("_scheduler",)

    def __init__(
        self, scheduler: Scheduler, request: RouteRequest, made: Maker, now: float
    ) -> None:
        super().__init__(scheduler.known, request, made, now)
        self._scheduler = scheduler

    def try_arms(self, arms: Arms, course_of: Callable[[Arm], object]) -> None:
        """Decide by the arm that the request belongs to; `course_of` knows what that decides by."""
        request, made = self.request, self.made

        def choose(hashes: Hashes | None) -> object:
            arm = arms.find(request.request_id, request.session, hashes or NO_HASHES)
            made.arm, made.pricing = arm, arm.policy
            return course_of(arm)

        self.course_of = choose

    def _in_time(self, weighed: Sequence[tuple[float, Terms]]) -> list[int]:
        places = super()._in_time(weighed)
        best = min(self.made.forecasts, key=lambda one: one.chance)
        if self._scheduler.judge.is_hopeless(best, self.request.priority):
            raise HopelessError
        return places

    def booked(self, worker: WorkerId, terms: Terms) -> None:
        """Note that the request was booked at a worker."""
        scheduler, request, made = self._scheduler, self.request, self.made
        if made.brought or request.adapter:
            chosen = made.candidates([terms])[0]
            if (brought := made.brought.get(worker)) is not None:
                scheduler.bring(request.request_id, chosen, brought)
            if request.adapter:
                scheduler.load_adapter(
                    request.request_id, request.adapter, chosen, streams=request.streams
                )
        if request.targets is not None:
            scheduler.slo.sent(request.request_id, request.targets, made.forecast(worker), self.now)

    def learn_arm(self, arms: Arms | None, hashes: Hashes | None) -> None:
        """Remember the conversation of a request that was booked by an arm."""
        request = self.request
        if arms is not None and self.made.arm is not None:
            arms.learn(request.request_id, request.session, hashes or NO_HASHES)

    def begun(self, booking: Booking | None, waited_ms: float, now: float) -> bool:
        """Note the first token; return whether its time says nothing of the worker's speed. None:
        its booking is none that waited for it.
        """
        scheduler = self._scheduler
        if scheduler.slo.open:
            scheduler.slo.first_token(self.request.request_id, now)
        if self.made.arm is not None:
            self.made.arm.counter.began(waited_ms)
        return booking is not None and scheduler.prepared_first(booking, now)

    def served(self, booking: Booking | None, now: float) -> None:
        """Note that the request was served."""
        scheduler, request = self._scheduler, self.request
        scheduler.workers.adapters.ended(request.request_id)
        scheduler.fetches.ended(request.request_id)
        if request.targets is not None:
            if booking is not None:
                scheduler.slo.served(request.request_id, booking.output_tokens, now)
            scheduler.slo.close(request.request_id)
