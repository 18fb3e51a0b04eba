"""Bounds of admission changed at one replica are taken by all of its bucket; the last change wins.

They travel with the heartbeats, so a lost message costs a second, and a replica that starts later
takes what is in force. When the whole bucket stops they are forgotten: settings are for good.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.serve.admission import AdmissionGate, AdmissionLimits
from kvmesh.bounds import UNREADABLE
from kvmesh.core.admission.sibling_counters import SharedLimits, newest
from kvmesh.observe import get_logger

MOST_REFUSED: Final = 64
"""Bounds of siblings remembered as refused: they come again each second."""

AHEAD_S: Final = 86_400.0
"""A change made later than that is a clock's mistake, or a lie that would keep out all others."""


YOUNGER: Final = frozenset({"program_turns"})
"""Bounds that older siblings do not know: they refuse all the others with them."""


def reported_as(
    limits: AdmissionLimits, named: frozenset[str] = YOUNGER
) -> dict[str, int | float | str]:
    """Return bounds as siblings are told of them, of the younger ones those that are `named`."""
    values: dict[str, int | float | str] = msgspec.to_builtins(limits)
    return {name: one for name, one in values.items() if name in named or name not in YOUNGER}


class AdmissionShare:
    """Changes the gate's bounds here, and as the siblings' heartbeats tell. Of `YOUNGER` bounds
    only those are told that somebody has changed; each replica keeps its own of the others.
    """

    def __init__(
        self,
        gate: AdmissionGate,
        router: Router,
        router_id: str,
        replicas: Callable[[], tuple[RouterHeartbeat, ...]],
    ) -> None:
        self.gate = gate
        self._router = router
        self._router_id = router_id
        self._replicas = replicas
        self._named: frozenset[str] = frozenset()
        self._refused: deque[SharedLimits] = deque(maxlen=MOST_REFUSED)

    def change(self, limits: AdmissionLimits) -> None:
        """Change the bounds, and publish them to the siblings."""
        # Later than what is in force even where another replica's clock is ahead.
        at = max(time.time(), self._router.admission.at + 0.001)
        before = self.gate.limits
        self._named |= {one for one in YOUNGER if getattr(limits, one) != getattr(before, one)}
        values = reported_as(limits, self._named)
        self._router.admission = SharedLimits(at, self._router_id, values)
        self.gate.change(limits)
        get_logger().info("admission changed", **values)

    def taken_by(self) -> list[str]:
        """Return the replicas that go, or within some seconds will go, by the same bounds."""
        return sorted({self._router_id, *(one.router for one in self._replicas())})

    def adopt(self) -> None:
        """Take what a sibling was told later; bounds that cannot be are refused and said once."""
        mine, reported = self._router.admission, (one.admission for one in self._replicas())
        theirs = newest((mine, *(one for one in reported if one not in self._refused)))
        if theirs == mine:
            return
        try:
            limits = msgspec.convert(self._kept() | theirs.limits, AdmissionLimits)
            late = theirs.at > time.time() + AHEAD_S
            wrong = "no clock is so far ahead as theirs" if late else limits.wrong()
        except UNREADABLE as error:
            limits, wrong = self.gate.limits, str(error)
        if wrong:
            self._refused.append(theirs)
            get_logger().warning("a sibling's admission bounds refused", by=theirs.by, error=wrong)
            return
        self._router.admission = theirs
        self._named |= YOUNGER & theirs.limits.keys()
        self.gate.change(limits)
        get_logger().info("admission changed by a sibling", by=theirs.by, **reported_as(limits))

    def _kept(self) -> dict[str, int | float | str]:
        """Return the bounds that stay as they are here where a sibling tells nothing of them."""
        return {name: getattr(self.gate.limits, name) for name in YOUNGER}
