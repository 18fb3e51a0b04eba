"""A stream that goes on at another worker: what is to be routed for it, and since when."""

from collections.abc import Callable

import msgspec

from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.forward.resume import Going


class StreamTurn:
    """One stream from when it was cut until it goes on.

    Its request is read once more, for a long body in a thread: whoever asks for a target before
    that waits, and `proceed` is called.
    """

    __slots__ = ("_cut_s", "_going", "_one", "_proceed", "_read", "_waiting")

    def __init__(
        self, one: Dispatched, going: Going, now: float, proceed: Callable[[], None]
    ) -> None:
        self._one = one
        self._going = going
        self._cut_s = now
        self._proceed = proceed
        self._read = self._waiting = False

    def is_unread(self) -> bool:
        """Return whether what is to be routed is not known yet: `proceed` is called when it is."""
        self._waiting = not self._read
        return self._waiting

    def take(self, request: RouteRequest) -> None:
        """Take what was read: the stream keeps its name, its program's turn and its place."""
        one, going = self._one, self._going
        expected = request.expected_output_tokens
        left = max(1, expected - going.passed) if expected else 0
        one.request = msgspec.structs.replace(
            request,
            request_id=one.name,
            turn=one.turn,
            expected_output_tokens=left if going.tokens is not None else expected,
        )
        if going.tokens is not None:
            one.unforeseen = "continued"
        self._read = True
        if self._waiting:
            self._proceed()

    def began(self, now: float) -> tuple[int, float]:
        """Return behind which token it goes on, and after how many milliseconds."""
        return self._going.passed, (now - self._cut_s) * 1000.0
