"""Live workers of which the index has nothing, though they say that they published."""

from collections.abc import Iterable
from typing import Final

from kvmesh.actors.kernel import Effect, Fields, Log
from kvmesh.bounds import counted, shown
from kvmesh.core.journal.recovery import Recovery

SETTLE_S: Final = 5.0
"""So long after the start a replica waits for what such workers send: it takes them about 2 s."""

GRACE_S: Final = 1.0
"""What a worker that just joined published may still be under way."""


class LackingWorkers:
    """Says that an index which was loaded lacks live workers. `Recovery` has them asked.

    A snapshot may be from before they joined, or its writer may not have read them.
    """

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._logged = False

    def why_not(self, now: float, read_s: float | None) -> str:
        """Return why no request should come, for a journal that was read at `read_s`."""
        young = read_s is not None and now < read_s + SETTLE_S
        unknown = self._recovery.lacking(now) if young else {}
        if not unknown:
            return ""
        lacking = counted(len(unknown), "worker")
        return f"asking for the blocks of {lacking} that the index does not have"

    def check(self, now: float) -> Iterable[Effect]:
        """Return a line when there are such workers; once, until there are none."""
        unknown = self._recovery.lacking(now)
        lacking = [one for one, since_s in unknown.items() if now >= since_s + GRACE_S]
        if not unknown:
            self._logged = False
        if self._logged or not lacking:
            return ()
        self._logged = True
        fields: Fields = {"workers": len(lacking), "first": shown(min(lacking))}
        return (Log("warning", "index lacks live workers, asking them", fields),)
