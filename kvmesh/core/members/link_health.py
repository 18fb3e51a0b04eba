"""Whether silence is the members' or the network's."""

from typing import Final

from kvmesh.bounds import listed
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.signs import DEAD_AFTER_S, NEVER

QUIET_S: Final = 1.5
"""Nothing of anybody for so long, where everybody speaks each second: who judges may be deaf."""

LATE_S: Final = 0.75
"""A look that comes so long after the last one: who judges stood still, and has much to read."""

WARNING: Final = (
    "nothing is heard over NATS: workers and replicas count as last heard of while they answer"
)


class LinkHealth:
    """Knows when silence of `memberships` is the network's, and lists the silent members.

    Nobody's silence counts until what came meanwhile is read, when the process itself stood still.
    While nothing at all is heard, not even one's own heartbeat, the messages' way is to blame: who
    answers over HTTP is there as last heard of, and members that nobody asks stay.
    `settled`: connected for so long since it began that everybody who speaks was heard.
    """

    def __init__(self, *memberships: Membership) -> None:
        self.deaf = False
        self.settled = True
        self._settles_s = -NEVER
        self._memberships = memberships
        self._connected = True
        self._received_s = self._cut_s = -NEVER
        self._checked_s = NEVER

    def set_connected(self, up: bool) -> None:
        """Note that the connection broke or came back."""
        self._connected = up

    def set_asked(self) -> None:
        """Note that silent members are probed over HTTP from now on."""
        for members in self._memberships:
            members.signs.asked = True

    def begin(self, now: float) -> None:
        """Note that heartbeats count from now on."""
        self.settled = False
        self._settles_s = now + DEAD_AFTER_S

    def warnings(self) -> tuple[str, ...]:
        """Return what people should know of it, one line each."""
        if self.deaf:
            return (WARNING,)
        silent = [name for members in self._memberships for name in members.signs.silent]
        if not silent:
            return ()
        known = sum(map(len, self._memberships))
        text = f"{self.silent()} of {known} members are not heard over NATS but answer over HTTP"
        return (f"{text}: {listed(silent)}",)

    def silent(self) -> int:
        """Return how many members are not heard but answer."""
        return sum(len(members.signs.silent) for members in self._memberships)

    def note_alive(self, now: float) -> None:
        """Note a heartbeat of any member."""
        self._received_s = now
        self.deaf = False

    def check(self, now: float) -> None:
        """Judge anew; call it before members are expired, several times a second."""
        if not self._connected:
            self._cut_s = now
        if not self.settled:
            self._settles_s = self._settles_s if self._connected else now + DEAD_AFTER_S
            self.settled = now >= self._settles_s
        late = now > self._checked_s + LATE_S
        self._checked_s = now
        since_s = max(self._received_s, self._cut_s)
        self.deaf = not self._connected or -NEVER < since_s < now - QUIET_S
        for members in self._memberships:
            if late or (self.deaf and not members.signs.asked):
                members.signs.grant(now)
            elif self.deaf:
                members.signs.excuse(now)
