"""Replicas that have no worker for a model, as they say when they are sent a request."""

from collections import OrderedDict
from typing import Final

MOST_KNOWN: Final = 1024
"""(replica, model) that are remembered; beyond it the oldest are dropped, and asked again."""

REST_S: Final = 1.0
"""A replica that refused a request for want of a worker gets the next one of its model so late."""

TRIAL_S: Final = 0.25
"""That one goes alone for so long: who has no worker says so at once."""


class Workerless:
    """Knows which replicas would refuse a request of a model. `pauses` is empty while none would.

    What a replica lacks for one model it may have for another, so that its health is untouched.
    """

    def __init__(self) -> None:
        self.pauses: OrderedDict[tuple[str, str], tuple[float, bool]] = OrderedDict()

    def refused(self, replica: str, model: str, now: float) -> None:
        """Note that a replica had no worker for a request."""
        self.pauses[replica, model] = now + REST_S, False
        self.pauses.move_to_end((replica, model))
        if len(self.pauses) > MOST_KNOWN:
            self.pauses.popitem(last=False)

    def refuses(self, replica: str, model: str, now: float) -> bool:
        """Return whether a replica would refuse a request now; changes nothing."""
        return now < self.pauses.get((replica, model), (now, False))[0]

    def chosen(self, replica: str, model: str, now: float) -> None:
        """Note that a request goes there: after a refusal others follow once it was not refused."""
        pause = self.pauses.pop((replica, model), None)
        if pause is not None and not pause[1]:
            self.pauses[replica, model] = now + TRIAL_S, True
