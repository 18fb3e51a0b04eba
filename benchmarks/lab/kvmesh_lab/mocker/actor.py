"""A simulated engine as an actor: the same under the clock and in the simulator."""

from collections.abc import Iterable, Iterator

from kvmesh.actors.kernel import Effect, Message, Send, Wake
from kvmesh.errors import RequestError
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, Step


class Generate(Message, frozen=True):
    """Queue `request`; it belongs to the engine until it is finished or refused."""

    request: EngineRequest


class CancelGeneration(Message, frozen=True):
    """Drop a request, its client having gone."""

    request_id: str


class StepDue(Message, frozen=True):
    """The step under way is over, or an idle engine has work (the engine's own timer)."""


class EngineStepped(Message, frozen=True):
    """What a step brought, told when it ends: tokens, finished requests, cache events.

    A request that was cancelled during the step is still in it: `EngineRequest.generated` counts.
    """

    engine: str
    step: Step


class GenerationRefused(Message, frozen=True):
    """The engine cannot ever serve the request."""

    engine: str
    request_id: str
    reason: str


class SimulatedEngine:
    """Runs an `EngineModel` step by step and tells `listener` what each step brought."""

    def __init__(self, name: str, options: EngineOptions, listener: str) -> None:
        self.name = name
        self.model = EngineModel(options)
        self._listener = listener
        self._step: Step | None = None
        self._awake = False

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Take a request, a cancellation or the end of a step."""
        match message:
            case StepDue():
                return self._next_step(now)
            case Generate():
                return self._generate(message.request, now)
            case CancelGeneration():
                self.model.abort(message.request_id)
                return ()
            case _:
                return ()

    def _generate(self, request: EngineRequest, now: float) -> Iterator[Effect]:
        try:
            self.model.add(request, now)
        except RequestError as error:
            refusal = GenerationRefused(self.name, request.request_id, str(error))
            yield Send(self._listener, refusal)
            return
        if not self._awake:
            # Not at once: what arrives at the same time shall be in the same step.
            self._awake = True
            yield Wake(0.0, StepDue())

    def _next_step(self, now: float) -> Iterator[Effect]:
        if self._step is not None:
            yield Send(self._listener, EngineStepped(self.name, self._step))
        self._step = self.model.step(now)
        self._awake = self._step is not None
        if self._step is not None:
            yield Wake(self._step.duration_s, StepDue())
