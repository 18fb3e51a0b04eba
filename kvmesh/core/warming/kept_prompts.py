"""The last prompts that were sent, and how often their beginnings are asked for."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import exp
from typing import Final, Generic, TypeVar

import msgspec

from kvmesh.core.blocks.graded import grade, graded_count, graded_depth
from kvmesh.core.blocks.hashing import Hashes, as_key
from kvmesh.core.warming.returns import Outlook, Returns

P = TypeVar("P")

FRESH_S: Final = 300.0
"""A visit of a shared beginning counts a third after so long."""

AHEAD_S: Final = 60.0
"""Returns are foretold for so long."""

_SAME_PROMPT: Final = 2
_TOO_LARGE: Final = 8


class KeptOptions(msgspec.Struct, frozen=True):
    """At most `most` prompts of `most_bytes` together are kept, of `least_tokens` each."""

    most: int = 512
    most_bytes: int = 64 << 20
    least_tokens: int = 256


class _Mark(msgspec.Struct, eq=False, gc=False):
    """A graded block on the way of `users` kept prompts, which `visits` others have come by."""

    users: int = 0
    visits: float = 0.0
    at_s: float = 0.0


class Kept(msgspec.Struct, Generic[P], eq=False):
    """One prompt as it was sent last, `used_s`, its `turns`th time: what to send (`what`), of
    `size` bytes, its `hashes`, and the keys of its graded blocks.
    """

    what: P
    hashes: Hashes
    size: int
    used_s: float
    turns: int
    marks: tuple[bytes, ...]


class KeptPrompts(Generic[P]):
    """Prompts by their last graded block: one that goes on from another takes its place.

    Of a prompt and the next one with the same graded blocks only the later is kept, so of
    many short questions behind one system prompt there is one. The longest unused goes first.
    """

    def __init__(self, options: KeptOptions = KeptOptions()) -> None:  # noqa: B008  immutable
        self.options = options
        self.size = 0
        self._tips: OrderedDict[bytes, Kept[P]] = OrderedDict()
        self._marks: dict[bytes, _Mark] = {}
        self._returns = Returns()

    def __len__(self) -> int:
        """Return how many prompts are kept."""
        return len(self._tips)

    def prompts(self) -> Iterator[Kept[P]]:
        """Yield all that are kept, the longest unused first."""
        return iter(self._tips.values())

    def add(self, hashes: Hashes, what: P, size: int, block_size: int, now: float) -> None:
        """Keep a prompt that is sent now. O(its graded blocks)."""
        blocks, options = hashes.blocks, self.options
        if blocks * block_size < options.least_tokens or size > options.most_bytes // _TOO_LARGE:
            return
        placed = grade(hashes.upto(blocks), blocks)[: graded_count(blocks)]
        marks = tuple(as_key(one) for one in placed)
        if not marks:
            return
        before = self._find(marks)
        turns = 1
        if before is None:
            self._visit(marks, now)
        else:
            turns += before.turns
            self._returns.returned(before.turns, now - before.used_s)
            self._drop(before)
        for key in marks:
            mark = self._marks.get(key)
            if mark is None:
                mark = self._marks[key] = _Mark()
            mark.users += 1
        self._tips[marks[-1]] = Kept(what, hashes, size, now, turns, marks)
        self.size += size
        while self.size > options.most_bytes or len(self._tips) > options.most:
            oldest = next(iter(self._tips.values()))
            self._returns.gone(oldest.turns, now - oldest.used_s)
            self._drop(oldest)

    def rates(self, now: float) -> dict[bytes, float]:
        """Return how often a second each graded block will be asked for. O(all their marks)."""
        kept = self._tips.values()
        outlook: Outlook = self._returns.outlook((one.turns, now - one.used_s) for one in kept)
        found = {
            key: mark.visits * exp(min(0.0, mark.at_s - now) / FRESH_S) / FRESH_S
            for key, mark in self._marks.items()
        }
        for one in kept:
            rate = outlook.rate(one.turns, now - one.used_s, AHEAD_S)
            for key in one.marks:
                found[key] += rate
        return found

    def _find(self, marks: Sequence[bytes]) -> Kept[P] | None:
        """Return the prompt that this one goes on from, of at least half of its length."""
        least = graded_depth(len(marks)) // _SAME_PROMPT
        for number in range(len(marks), 0, -1):
            if graded_depth(number) < least:
                break
            if (found := self._tips.get(marks[number - 1])) is not None:
                return found
        return None

    def _visit(self, marks: Sequence[bytes], now: float) -> None:
        """Note a prompt that goes on from none: others will come by what it shares with some."""
        for key in marks:
            mark = self._marks.get(key)
            if mark is None:
                return
            mark.visits = mark.visits * exp(min(0.0, mark.at_s - now) / FRESH_S) + 1.0
            mark.at_s = now

    def _drop(self, one: Kept[P]) -> None:
        del self._tips[one.marks[-1]]
        self.size -= one.size
        for key in one.marks:
            mark = self._marks[key]
            mark.users -= 1
            if not mark.users:
                del self._marks[key]
