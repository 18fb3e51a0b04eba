"""How many requests may be sent once more: retries must not be what a sick fleet dies of."""

from collections import OrderedDict
from typing import Final

BURST: Final = 100.0
LEAST_PER_S: Final = 10.0
TENANT_PART: Final = 4
"""Of what the bucket holds one tenant may take this part."""

MOST_TENANTS: Final = 1024


class RetryBudget:
    """A bucket of retries: `ratio` for each request, and `LEAST_PER_S`, up to `BURST` saved up.

    So a fleet that fails every request gets at most 1 + `ratio` times its load in the long run.
    Source: Finagle's RetryBudget.
    """

    def __init__(self, ratio: float) -> None:
        self.spent = 0
        self.refused = 0
        self._ratio = ratio
        self._left = BURST if ratio else 0.0
        self._filled_s = 0.0
        self._tenants: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def deposit(self) -> None:
        """Count a request."""
        left = self._left + self._ratio
        self._left = left if left < BURST else BURST  # noqa: FURB136  a third of the time

    def take(self, now: float) -> bool:
        """Return whether one more attempt may be made, and count it."""
        if self._ratio:
            past_s = max(0.0, now - self._filled_s)
            self._left = min(BURST, self._left + LEAST_PER_S * past_s)
        self._filled_s = now
        if self._left < 1.0:
            self.refused += 1
            return False
        self._left -= 1.0
        self.spent += 1
        return True

    def take_for(self, tenant: str, now: float, *, first: bool = False) -> bool:
        """Do as `take` for a stream that is to go on: one tenant's may not use all of it up. The
        `first` time costs nothing where there are retries at all: an engine has any number of
        streams, and takes all of them along.
        """
        if first and self._ratio:
            self.spent += 1
            return True
        most, least = BURST / TENANT_PART, LEAST_PER_S / TENANT_PART
        left, filled_s = self._tenants.pop(tenant, (most, now))
        left = min(most, left + least * max(0.0, now - filled_s))
        allowed = left >= 1.0 and self.take(now)
        self.refused += left < 1.0
        self._tenants[tenant] = left - allowed, now
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return allowed

    def left(self) -> float:
        """Return how many retries are saved up."""
        return self._left
