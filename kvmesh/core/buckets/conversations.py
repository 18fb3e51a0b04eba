"""Which bucket holds the conversation that a request continues."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.core.buckets.beginnings import Beginning, PromptKeys, depth_keys
from kvmesh.core.buckets.homes import HomeOptions, Homes

MOST_PASSED: Final = 2
"""Requests that go on from a first user message, and continue nothing else that is known, before
that message counts as one that many conversations share: an example of a few-shot prompt, the
preamble of an agent.
"""


class Conversations:
    """Finds conversations and sessions again, and remembers where they went.

    A conversation is remembered by its first user message, and here alone by each of its turns and
    by the depths of its text. Others are told of the instructions and the first message, which is
    one value for a conversation; of a turn only where the first message does not tell conversations
    apart; and of the greatest depth of a prompt that is no chat.
    """

    def __init__(self, options: HomeOptions) -> None:
        self.homes = Homes(options)

    def find(self, keys: PromptKeys, now: float, *, passes: bool = True) -> tuple[str, ...]:
        """Return the buckets that hold the conversation, the last used at the end; () for one that
        begins, or is not known. `passes` False: the prompt goes nowhere.
        """
        homes, root = self.homes, keys.root
        if root is None or not keys.ends:
            return ()
        for key in keys.ends[1:]:
            if found := homes.find_end(key, now):
                return found
        if not keys.answered and (found := homes.find_end(root.key, now)):
            return found
        found = homes.find(root.key, now)
        if passes:
            homes.count_passed(root.key)
        return found if homes.passed(root.key) <= MOST_PASSED else ()

    def find_session(self, sessions: Sequence[int], now: float) -> tuple[str, ...]:
        """Return the bucket of the first session that is known: a request's own, its parent's."""
        return next((found for key in sessions if (found := self.homes.find(key, now))), ())

    def find_beginning(self, beginnings: Sequence[Beginning], now: float) -> tuple[str, ...]:
        """Return the buckets that got the longest of `beginnings` that is known."""
        known = (self.homes.find(one.key, now) for one in reversed(beginnings))
        return next((found for found in known if found), ())

    def note(
        self, keys: PromptKeys, beginnings: Sequence[Beginning], bucket: str, now: float
    ) -> None:
        """Remember where a prompt went. `beginnings` are none where it was at home there."""
        homes, root, ends = self.homes, keys.root, keys.ends
        reported = _reported(keys, beginnings)
        for one in beginnings:
            if one is not root:
                homes.note(one.key, bucket, now, reported=one is reported)
        if root is None:
            return
        homes.note(root.key, bucket, now, ended=not ends)
        if ends:
            several = len(homes.find(root.key, now)) > 1
            crossing = several or homes.passed(root.key) > MOST_PASSED
            homes.note(ends[0], bucket, now, ended=True, reported=crossing)


def find_beginnings(keys: PromptKeys, start: str) -> list[Beginning]:
    """Return what of a prompt others may share, the shortest first: as far as its instructions, its
    first user message, the depths that `start` reaches; a prompt that is no chat whole, too.
    """
    return sorted(_beginnings(keys, start), key=_chars)


def _reported(keys: PromptKeys, beginnings: Sequence[Beginning]) -> Beginning | None:
    """Return the key to publish besides the first user message."""
    if keys.whole is None:
        return keys.instructions
    return beginnings[-2] if len(beginnings) > 1 else keys.whole


def _beginnings(keys: PromptKeys, start: str) -> Iterator[Beginning]:
    yield from (one for one in (keys.instructions, keys.root, keys.whole) if one is not None)
    if start:
        yield from depth_keys(keys.seed, start)


def _chars(one: Beginning) -> int:
    return one.chars
