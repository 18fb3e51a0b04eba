"""WebSockets at workers that drain."""

from collections.abc import Callable
from typing import Any

from kvmesh.app.serve.open_sockets import OpenSockets
from kvmesh.core.members.membership import DRAINING


class Place:
    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.forwarding: Any = self
        self.scope = self
        self.left: list[str] = []

    def enter(self, call: Callable[[Any], None], failure: Any) -> None:
        call(failure)

    def hand_over(self, failure: Any) -> None:
        self.left.append(failure.kind)


class Members:
    draining: frozenset[str] = frozenset()

    def why_not(self, worker: str, now: float) -> str | None:
        del now
        return DRAINING if worker in self.draining else None


def test_sockets_leave_a_worker_that_drains_after_the_drain_time() -> None:
    sockets, members = OpenSockets(), Members()
    leaves, stays = Place("w0"), Place("w1")
    sockets.open = {leaves: None, stays: None}

    def look(now: float) -> None:
        sockets.look(members, 5.0, now)  # type: ignore[arg-type]

    look(0.0)
    members.draining = frozenset({"w0"})
    look(1.0)
    look(5.9)
    before = list(leaves.left)
    members.draining = frozenset()
    look(6.0)
    members.draining = frozenset({"w0"})
    look(7.0)
    look(11.0)
    still = list(leaves.left)
    look(12.0)

    assert (before, still, leaves.left, stays.left) == ([], [], ["left"], [])
