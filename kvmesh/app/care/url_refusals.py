"""What people and Prometheus are told of refused URLs."""

import time
from itertools import islice

from kvmesh.bounds import MOST_NAMED
from kvmesh.core.members.url_guard import UrlGuard


class UrlRefusals:
    """Shows what a guard refused."""

    def __init__(self, guard: UrlGuard) -> None:
        self.guard = guard

    def refused(self) -> dict[str, str]:
        """Return the reason for each member refused of late, by name."""
        return self.guard.refused(time.monotonic())

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each member refused of late, `MOST_NAMED` at most; how many more."""
        refused = self.refused()
        lines = [
            f"{name} gets no requests: {why}; see --upstream-allow"
            for name, why in islice(refused.items(), MOST_NAMED)
        ]
        if (more := len(refused) - len(lines)) > 0:
            lines.append(f"{more} more members get no requests: see --upstream-allow")
        return tuple(lines)
