"""When each request of a simulated fleet is sent: at its time, or when what it waits for ended."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh_lab.simulator.fleet.outcome import MS
from kvmesh_lab.simulator.fleet.request import FleetRequest

RAMP_S: Final = 60.0
"""Over so many seconds the first programs of a closed loop begin, evenly."""


class Course:
    """Open loop: what waits for nothing is sent at its time divided by `speedup`.

    With `live` above 0 the recorded times do not count: so many programs are under way, and as one
    ends the next begins. A program is a session with its sub-agents, or a request alone. Pauses
    within one are as recorded in both.
    """

    def __init__(self, requests: Sequence[FleetRequest], speedup: float, live: int) -> None:
        self._requests = requests
        self._speedup = speedup
        self._live = live
        self._left = Counter(_program(request) for request in requests)
        firsts = dict[str | int, list[FleetRequest]]()
        for request in requests:
            if request.is_first:
                firsts.setdefault(_program(request), []).append(request)
        self._firsts: Iterator[list[FleetRequest]] = iter(firsts.values())

    def begin(self) -> list[tuple[FleetRequest, float]]:
        """Return the requests that wait for nothing, each with when it is sent, s."""
        if self._live:
            count = min(self._live, len(self._left))
            return [
                (request, RAMP_S * number / count)
                for number in range(count)
                for request in self._next()
            ]
        return [
            (request, request.trace.timestamp_ms / MS / self._speedup)
            for request in self._requests
            if request.is_first
        ]

    def ended(self, request: FleetRequest, now: float) -> list[tuple[FleetRequest, float]]:
        """Return those that waited for its end, each with when it is sent, s."""
        due: list[tuple[FleetRequest, float]] = []
        for place in request.following:
            following = self._requests[place]
            delay_ms, recorded_s = following.trace.delay_ms, following.trace.timestamp_ms / MS
            due_s = max(now, recorded_s / self._speedup) if not self._live else now
            due.append((following, due_s if delay_ms is None else now + delay_ms / MS))
        program = _program(request)
        self._left[program] -= 1
        if self._live and not self._left[program]:
            due += [(one, now) for one in self._next()]
        return due

    def _next(self) -> list[FleetRequest]:
        """Return what the next program begins with, nothing after the last."""
        return next(self._firsts, list[FleetRequest]())


def _program(request: FleetRequest) -> str | int:
    trace = request.trace
    return trace.program or trace.session or trace.index
