"""Failed attempts at each member, counted by the way they failed."""

from collections import Counter
from collections.abc import Collection
from typing import Final

KNOWN_STATUSES: Final = frozenset({"429", "500", "502", "503", "504"})


class FailureCounts:
    """Counts failed attempts by (member, kind)."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, member: str, kind: str) -> None:
        """Count a failed attempt; what engines make up is no kind of its own."""
        if kind[:1].isdigit() and kind not in KNOWN_STATUSES:
            kind = f"{kind[0]}xx"
        self._counts[member, kind] += 1

    def keep(self, members: Collection[str]) -> None:
        """Drop what was counted of all others."""
        for key in [one for one in self._counts if one[0] not in members]:
            del self._counts[key]

    def as_dict(self) -> dict[tuple[str, str], int]:
        """Return the counts, sorted."""
        return dict(sorted(self._counts.items()))
