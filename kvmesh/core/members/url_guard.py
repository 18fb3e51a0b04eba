"""Who was refused because of the URL it named, and why."""

from typing import Final

import msgspec

from kvmesh.core.members.url_rules import UrlRules

REMEMBER_S: Final = 10.0
"""How long a refusal is shown that does not happen again."""

MOST: Final = 64
"""Members remembered: names come from outside."""


class UrlRefusal(msgspec.Struct, frozen=True):
    """A URL refused. `new`: not the same member for the same reason as a moment ago."""

    reason: str
    new: bool


class UrlGuard:
    """Checks what members report by `rules`, and keeps the refusals for the views."""

    def __init__(self, rules: UrlRules | None = None) -> None:
        self.rules = rules or UrlRules()
        self.refusals = 0
        self._refused: dict[str, tuple[str, float]] = {}

    def judge(self, member: str, url: str, now: float) -> UrlRefusal | None:
        """Return why the URL of `member` is not used; None when it is."""
        why = self.rules.why_not(url)
        if not why:
            self._refused.pop(member, None)
            return None
        return self._note(member, f"its URL {url!r:.200} is refused: {why}", now)

    def judge_peer(self, host: str, port: int, peer: str, now: float) -> str:
        """Return why a host with the address `peer` is sent nothing; "" when it is."""
        why = self.rules.why_not_peer(host, port, peer)
        if why:
            self._note(host, f"its address is refused: {why}", now)
        return why

    def refused(self, now: float) -> dict[str, str]:
        """Return the reason for each member refused of late, by name."""
        fresh = {name: one for name, one in self._refused.items() if now < one[1] + REMEMBER_S}
        self._refused = fresh
        return {name: reason for name, (reason, _) in sorted(fresh.items())}

    def _note(self, member: str, reason: str, now: float) -> UrlRefusal:
        self.refusals += 1
        before = self.refused(now).get(member)
        if before is not None or len(self._refused) < MOST:
            self._refused[member] = (reason, now)
        return UrlRefusal(f"{reason}; see --upstream-allow", before != reason)
