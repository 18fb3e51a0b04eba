"""Signs of life: heartbeats, and answers over HTTP of those whose heartbeats stop."""

from enum import Enum
from typing import Final

import msgspec

DEAD_AFTER_S: Final = 3.5
"""Three lost one-second heartbeats and a half: a dead worker gets nothing new within 4 s."""

ASK_AFTER_S: Final = 2.1
"""Two lost heartbeats: the member is asked while it still counts as heard."""

ASK_AGAIN_S: Final = 1.0

SURE_S: Final = 0.25
"""Who refuses is asked once more so soon: one connection may fail for reasons of its own."""

GRACE_S: Final = 1.5
"""Who could not listen has read by then what was sent meanwhile, and heard the next heartbeat."""

NEVER: Final = float("inf")


class Turn(Enum):
    """What silence made of a member: given up, or there all the same."""

    DEAD = "dead"
    SILENT = "silent"


class _Sign(msgspec.Struct, eq=False):
    """When a member was last heard; from when it is asked, counts as silent, and is given up."""

    received_s: float
    ask_s: float = NEVER
    quiet_s: float = NEVER
    expires_s: float = NEVER
    refused: bool = False


class Signs:
    """The last sign of every member; without any for `dead_after_s` it is given up.

    While `asked`, somebody asks those who are `due` over HTTP. An answer is a sign, too: who is no
    longer heard stays for as long as it answers, as one of the `silent`. Two refusals end it.
    `first_s` is when anybody was heard first.
    """

    def __init__(self, dead_after_s: float = DEAD_AFTER_S) -> None:
        self.asked = False
        self.silent: set[str] = set()
        self.first_s = NEVER
        self._dead_after_s = dead_after_s
        self._signs: dict[str, _Sign] = {}

    def note_alive(self, member: str, now: float, *, lasting: bool = False) -> bool:
        """Take a heartbeat; return whether the member was silent. A `lasting` one needs none."""
        sign = self._signs.get(member)
        if sign is None:
            sign = self._signs[member] = _Sign(now)
            self.first_s = min(self.first_s, now)
        sign.received_s = now
        sign.refused = False
        if not lasting:
            sign.ask_s = now + ASK_AFTER_S
            sign.expires_s = sign.quiet_s = now + self._dead_after_s
        else:
            sign.ask_s = sign.expires_s = sign.quiet_s = NEVER
        was_silent = member in self.silent
        self.silent.discard(member)
        return was_silent

    def back(self, member: str, now: float) -> None:
        """Enter one that was given up and answers: it is silent until it is heard."""
        self.note_alive(member, now - self._dead_after_s)
        self.silent.add(member)
        self.answered(member, now)

    def drop(self, member: str) -> None:
        """Forget a member."""
        self._signs.pop(member, None)
        self.silent.discard(member)

    def is_reachable(self, member: str, now: float) -> bool:
        """Return whether the member's heartbeats come, or it needs none."""
        sign = self._signs.get(member)
        return sign is not None and (sign.expires_s == NEVER or now < sign.received_s + ASK_AFTER_S)

    def all_reported(self, now: float) -> bool:
        """Return whether all who are there had the time to be heard: `dead_after_s` went by."""
        return now >= self.first_s + self._dead_after_s

    def silence_s(self, member: str, now: float) -> float:
        """Return for how long the member was not heard, in seconds."""
        return now - self._signs[member].received_s

    def due(self, now: float) -> list[str]:
        """Return the members to be asked now, sorted; each is due again in `ASK_AGAIN_S`."""
        if not self.asked:
            return []
        due = sorted(name for name, sign in self._signs.items() if sign.ask_s <= now)
        for name in due:
            self._signs[name].ask_s = now + ASK_AGAIN_S
        return due

    def answered(self, member: str, now: float) -> bool:
        """Take that a member answered; return whether that counts: those who are heard need not."""
        if member not in self._signs or self.is_reachable(member, now):
            return False
        sign = self._signs[member]
        sign.refused = False
        sign.expires_s = max(sign.expires_s, now + self._dead_after_s)
        return True

    def refused(self, member: str, now: float) -> None:
        """Take that nobody was there to answer; the second time in a row the member is given up."""
        if member not in self._signs or self.is_reachable(member, now):
            return
        sign = self._signs[member]
        if sign.refused:
            sign.expires_s = min(sign.expires_s, now)
        sign.refused = True
        sign.ask_s = min(sign.ask_s, now + SURE_S)

    def excuse(self, now: float) -> None:
        """Mark no member as silent for a while: the network is down, so no heartbeat can come."""
        for sign in self._signs.values():
            sign.quiet_s = max(sign.quiet_s, now + GRACE_S)

    def grant(self, now: float) -> None:
        """Restart the heartbeat timeouts of all members: this process could not receive."""
        self.excuse(now)
        for sign in self._signs.values():
            sign.ask_s = max(sign.ask_s, now + GRACE_S)
            sign.expires_s = max(sign.expires_s, now + self._dead_after_s)

    def turns(self, now: float) -> list[tuple[str, Turn]]:
        """Return whom silence turns now, sorted by name. O(members)."""
        found: list[tuple[str, Turn]] = []
        for name, sign in self._signs.items():
            if sign.expires_s <= now:
                found.append((name, Turn.DEAD))
            elif self.asked and sign.quiet_s <= now and name not in self.silent:
                self.silent.add(name)
                found.append((name, Turn.SILENT))
        return sorted(found, key=lambda one: one[0])
