"""Whether silence is the members' or the network's."""

from typing import Final

from kvmesh.core.members.membership import Membership
from kvmesh.core.members.signs import NEVER

QUIET_S: Final = 1.5
"""Nothing of anybody for so long, where everybody speaks each second: who judges may be deaf."""

LATE_S: Final = 0.75
"""A look that comes so long after the last one: who judges stood still, and has much to read."""

WARNING: Final = (
    "nothing is heard over NATS: workers and replicas count as last heard of while they answer"
)


class Hearing:
    """Knows when not to take `memberships` for silent, and tells people who is.

    Nobody's silence counts until what came meanwhile is read, when the process itself stood still.
    While nothing at all is heard, not even one's own heartbeat, the messages' way is to blame: who
    answers over HTTP is there as last heard of, and members that nobody asks stay.
    """

    def __init__(self, *memberships: Membership) -> None:
        self.deaf = False
        self._memberships = memberships
        self._connected = True
        self._heard_s = self._cut_s = -NEVER
        self._looked_s = NEVER

    def set_connected(self, up: bool) -> None:
        """Note that the connection broke or came back."""
        self._connected = up

    def set_asked(self) -> None:
        """Note that from now on somebody asks the silent over HTTP."""
        for members in self._memberships:
            members.signs.asked = True

    def warnings(self) -> tuple[str, ...]:
        """Return what people should know of it, one line each."""
        if self.deaf:
            return (WARNING,)
        silent = self.silent()
        if not silent:
            return ()
        known = sum(map(len, self._memberships))
        return (f"{silent} of {known} members are not heard over NATS but answer over HTTP",)

    def silent(self) -> int:
        """Return how many members are not heard but answer."""
        return sum(len(members.signs.silent) for members in self._memberships)

    def heard(self, now: float) -> None:
        """Note a heartbeat of anybody."""
        self._heard_s = now
        self.deaf = False

    def look(self, now: float) -> None:
        """Judge anew; call it before members are expired, several times a second."""
        if not self._connected:
            self._cut_s = now
        late = now > self._looked_s + LATE_S
        self._looked_s = now
        since_s = max(self._heard_s, self._cut_s)
        self.deaf = not self._connected or -NEVER < since_s < now - QUIET_S
        for members in self._memberships:
            if late or (self.deaf and not members.signs.asked):
                members.signs.grant(now)
            elif self.deaf:
                members.signs.excuse(now)
