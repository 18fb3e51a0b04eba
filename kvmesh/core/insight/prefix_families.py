"""Which prompts belong together, told one at a time: those that begin alike where few others do."""

from collections.abc import Sequence
from typing import Final

COMMON_SHARE: Final = 1 / 16
"""A beginning that more requests than this have tells no family: it may be everybody's."""

LEAST_SEEN: Final = 4
"""Fewer requests than this make no beginning common."""

HALVED_AFTER: Final = 1024
"""Requests after which all counts are halved, so that what was common is forgotten."""

MAX_COUNTED: Final = 8192
"""Beginnings counted at most; beyond it all counts are halved at once. 1 MB."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class PrefixFamilies:
    """Names the family of each prompt: its first block that is not common.

    A conversation's turns, and questions on one document, are of one family; a system prompt that
    many share is none. A prompt of common blocks alone is a family of its own. Bounded.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0
        self._alone = 0

    def name(self, keys: Sequence[int]) -> int:
        """Return the family of a prompt with these hashes of its beginnings (u64), shortest first.

        O(common beginnings of the prompt); a u64, evenly spread.
        """
        self._total += 1
        if self._total >= HALVED_AFTER or len(self._counts) > MAX_COUNTED:
            self._halve()
        counts = self._counts
        bound = max(LEAST_SEEN, self._total * COMMON_SHARE)
        for key in keys:
            count = counts[key] = counts.get(key, 0) + 1
            if count <= bound:
                return key
        self._alone += 1
        return self._alone * _GOLDEN & _MASK

    def counted(self) -> int:
        """Return how many beginnings are counted."""
        return len(self._counts)

    def _halve(self) -> None:
        self._total //= 2
        self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}
