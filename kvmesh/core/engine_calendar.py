"""Which requests have something to do in which step."""

from kvmesh.core.engine_request import EngineRequest


class EngineCalendar:
    """Requests by step number. Each request is entered for one step at most."""

    def __init__(self) -> None:
        self._steps: dict[int, list[EngineRequest]] = {}

    def enter(self, step: int, request: EngineRequest) -> None:
        """Enter `request` for `step`."""
        self._steps.setdefault(step, []).append(request)

    def take(self, step: int) -> list[EngineRequest]:
        """Return the requests of `step`, in order of entry, and forget the step."""
        return self._steps.pop(step, [])

    def strike(self, step: int, request: EngineRequest) -> None:
        """Take a request that leaves early out of `step`, if that step is still to come."""
        entered = self._steps.get(step)
        if entered is not None:
            entered.remove(request)
            if not entered:
                del self._steps[step]
