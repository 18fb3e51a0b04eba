"""WebSockets that are open through this router, closed at workers that drain."""

from typing import Final, Protocol

from kvmesh.core.members.membership import DRAINING, Membership
from kvmesh.transport.http.forward.plan import Forwarding
from kvmesh.transport.http.upstream.messages import UpstreamFailure


class Socket(Protocol):
    """A WebSocket with its worker."""

    @property
    def forwarding(self) -> Forwarding:
        """Return its way."""
        ...

    @property
    def worker(self) -> str:
        """Return where it is."""
        ...


_LEAVES: Final = "it drains"


class OpenSockets:
    """Who opens one enters it with `open`, and takes it out at its end. O(sockets) a look."""

    def __init__(self) -> None:
        self.open: dict[Socket, None] = {}
        self._draining_s: dict[str, float] = {}

    def look(self, membership: Membership, stay_s: float, now: float) -> None:
        """Close those at workers that have been draining for `stay_s`: nothing can move them, but
        their clients can open others.
        """
        at = {one.worker for one in self.open}
        draining = {one for one in at if membership.why_not(one, now) == DRAINING}
        self._draining_s = {one: self._draining_s.get(one, now) for one in draining}
        for socket in list(self.open):
            worker = socket.worker
            if now - self._draining_s.get(worker, now) >= stay_s and worker in draining:
                left = UpstreamFailure("mid_response", "left", _LEAVES, worker)
                socket.forwarding.scope.enter(socket.forwarding.hand_over, left)
