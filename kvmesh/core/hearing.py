"""Whether silence is the members' or the network's."""

from typing import Final

from kvmesh.core.membership import NEVER, Membership

QUIET_S: Final = 1.5
"""Nothing of anybody for so long, where everybody speaks each second: who judges may be deaf."""

WARNING: Final = "nothing is heard over NATS: workers and replicas count as last heard of"

DOUBT_S: Final = 5.0
"""By then the pings of a connection have told whether it lives."""


class Hearing:
    """Pauses `memberships` while nothing at all is heard, not even one's own heartbeat.

    Then the messages' way is to blame: everybody stays as last heard of, and only failed requests
    leave a member out. A connection that lives through `DOUBT_S` of silence ends the doubt.
    """

    def __init__(self, *memberships: Membership) -> None:
        self.deaf = False
        self._memberships = memberships
        self._connected = True
        self._heard_s = self._cut_s = -NEVER

    def set_connected(self, up: bool) -> None:
        """Note that the connection broke or came back."""
        self._connected = up

    def warnings(self) -> tuple[str, ...]:
        """Return what people should know of it, one line each."""
        return (WARNING,) if self.deaf else ()

    def heard(self, now: float) -> None:
        """Note a heartbeat of anybody."""
        self._heard_s = now
        if self.deaf:
            self._turn(now, deaf=False)

    def look(self, now: float) -> None:
        """Judge anew; call it before members are expired, several times a second."""
        if not self._connected:
            self._cut_s = now
        quiet_s = now - max(self._heard_s, self._cut_s)
        deaf = not self._connected or QUIET_S < quiet_s < DOUBT_S
        if deaf != self.deaf:
            self._turn(now, deaf=deaf)

    def _turn(self, now: float, *, deaf: bool) -> None:
        self.deaf = deaf
        for members in self._memberships:
            if deaf:
                members.pause()
            else:
                members.resume(now)
