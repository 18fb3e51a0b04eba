"""What came over the bus or the journal and was refused: counted, and said once in a while."""

from collections.abc import Iterable
from typing import Final

from kvmesh.actors.kernel import Effect, Fields, Log
from kvmesh.bounds import shown

LOG_EVERY_S: Final = 10.0
"""So often one actor writes a line of it: whoever sends garbage sends much of it."""


class Refusals:
    """Counts the messages that one actor refused; `count` is since the start."""

    def __init__(self) -> None:
        self.count = 0
        self._logged = 0
        self._logged_s: float | None = None

    def note(self, source: str, reason: object, now: float) -> Iterable[Effect]:
        """Count a message of `source`; return the line of it, if one is due.

        The line names the latest sender and reason, and how many were refused since the last line.
        """
        self.count += 1
        if self._logged_s is not None and now < self._logged_s + LOG_EVERY_S:
            return ()
        refused, self._logged, self._logged_s = self.count - self._logged, self.count, now
        fields: Fields = {"from": shown(source), "reason": str(reason)[:400], "refused": refused}
        return (Log("warning", "message refused", fields),)
