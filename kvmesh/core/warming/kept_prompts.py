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
    """At most `most` prompts of `most_bytes` together are kept, of `least_tokens` and at most an
    eighth of `most_bytes` each.
    """

    most: int = 512
    most_bytes: int = 64 << 20
    least_tokens: int = 256

    @property
    def most_bytes_each(self) -> int:
        """Return the size of the largest prompt that is kept."""
        return self.most_bytes // _TOO_LARGE


class _Mark(msgspec.Struct, eq=False, gc=False):
    """A graded block on the way of `users` kept prompts, which `visits` others have come by."""

    users: int = 0
    visits: float = 0.0
    at_s: float = 0.0


class Sent(msgspec.Struct, Generic[P], frozen=True):
    """A prompt that is sent: what to send again (`what`), of `size` bytes, for which tenant."""

    what: P
    size: int
    tenant: str = ""


class Kept(msgspec.Struct, Generic[P], eq=False):
    """One prompt as it was `sent` last, `used_s`, its `turns`th time; its `hashes`, and the keys of
    its graded blocks.
    """

    sent: Sent[P]
    hashes: Hashes
    used_s: float
    turns: int
    marks: tuple[bytes, ...]

    @property
    def what(self) -> P:
        """Return what to send."""
        return self.sent.what


class _Share(msgspec.Struct, Generic[P], eq=False):
    """What is kept of one tenant, the longest unused first, and its bytes."""

    tips: OrderedDict[bytes, Kept[P]] = msgspec.field(default_factory=OrderedDict)
    size: int = 0


class KeptPrompts(Generic[P]):
    """Prompts by their last graded block: one that goes on from another takes its place.

    Of a prompt and the next one with the same graded blocks only the later is kept, so of
    many short questions behind one system prompt there is one. The longest unused goes first, of
    the tenant that has most: no other tenant's prompts push out those of one that has no more than
    an equal share of the number and of the bytes.
    """

    def __init__(self, options: KeptOptions = KeptOptions()) -> None:  # noqa: B008  immutable
        self.options = options
        self.size = 0
        self._tips: OrderedDict[bytes, Kept[P]] = OrderedDict()
        self._shares: OrderedDict[str, _Share[P]] = OrderedDict()
        self._marks: dict[bytes, _Mark] = {}
        self._returns = Returns()

    def __len__(self) -> int:
        """Return how many prompts are kept."""
        return len(self._tips)

    def prompts(self) -> Iterator[Kept[P]]:
        """Yield all that are kept, the longest unused first."""
        return iter(self._tips.values())

    def add(self, hashes: Hashes, sent: Sent[P], block_size: int, now: float) -> None:
        """Keep a prompt that is sent now. O(its graded blocks + tenants)."""
        blocks, options = hashes.blocks, self.options
        if blocks * block_size < options.least_tokens or sent.size > options.most_bytes_each:
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
        self._enter(Kept(sent, hashes, now, turns, marks))
        while (oldest := self._too_many()) is not None:
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

    def _too_many(self) -> Kept[P] | None:
        """Return who gives way; None: there is room."""
        shares = self._shares.values()
        if self.size > self.options.most_bytes:
            largest = max(shares, key=lambda one: one.size)
        elif len(self._tips) > self.options.most:
            largest = max(shares, key=lambda one: len(one.tips))
        else:
            return None
        return next(iter(largest.tips.values()))

    def _enter(self, one: Kept[P]) -> None:
        for key in one.marks:
            mark = self._marks.get(key)
            if mark is None:
                mark = self._marks[key] = _Mark()
            mark.users += 1
        tip, sent = one.marks[-1], one.sent
        share = self._shares.setdefault(sent.tenant, _Share())
        self._shares.move_to_end(sent.tenant)
        self._tips[tip] = share.tips[tip] = one
        share.size += sent.size
        self.size += sent.size

    def _drop(self, one: Kept[P]) -> None:
        tip, sent = one.marks[-1], one.sent
        share = self._shares[sent.tenant]
        del self._tips[tip], share.tips[tip]
        share.size -= sent.size
        self.size -= sent.size
        if not share.tips:
            del self._shares[sent.tenant]
        for key in one.marks:
            mark = self._marks[key]
            mark.users -= 1
            if not mark.users:
                del self._marks[key]
