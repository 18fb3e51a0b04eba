"""Chats whose token ids an engine told: what is known of a longer chat that begins the same."""

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.core.prompts.segment_cache import ByteBudgetCache

DEFAULT_BYTES: Final = 64 << 20


class PrefixStatistics(msgspec.Struct, frozen=True):
    """Counts since the start, and what is kept now.

    `unstable` prefixes were not those of the longer chat: its template changes earlier messages.
    """

    known: int
    bytes: int
    hits: int
    misses: int
    unstable: int


class RemotePrefixes:
    """Token ids of chats by their first messages, the least recently used dropped.

    A chat's follow-up turn begins with the messages of the one before, so its ids begin with those
    the engine told then: enough to find what is cached. The new messages are not known yet.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_BYTES) -> None:
        self._ids = ByteBudgetCache[int](capacity_bytes)
        self._hits = self._misses = self._unstable = 0

    def find(self, chain: Sequence[int]) -> tuple[int, bytes]:
        """Return how many leading messages are known, and their packed u32 ids. O(messages)."""
        for depth in range(len(chain), 0, -1):
            ids = self._ids.get(chain[depth - 1])
            if ids:
                self._hits += 1
                return depth, ids
        self._misses += 1
        return 0, b""

    def knows(self, key: int) -> bool:
        """Return whether the ids of the chat with that last key are known."""
        return self._ids.get(key) is not None

    def learn(self, chain: Sequence[int], ids: Sequence[int]) -> bool:
        """Take the ids of a whole chain; False when a shorter prefix turns out to differ.

        The longer one is believed: it is the newer.
        """
        packed = array("I", ids).tobytes()
        stable = True
        for key in reversed(chain[:-1]):
            known = self._ids.get(key)
            if known:
                stable = packed.startswith(known)
                break
        self._unstable += not stable
        self._ids.put(chain[-1], packed)
        return stable

    def statistics(self) -> PrefixStatistics:
        """Return the present counts."""
        kept = self._ids.statistics()
        return PrefixStatistics(kept.entries, kept.size, self._hits, self._misses, self._unstable)


def prefix_chain(context: Sequence[bytes], messages: Sequence[msgspec.Raw]) -> list[int]:
    """Return one key for each number of leading messages; `context` is what else is rendered.

    Messages count as the bytes the client sent. O(bytes), about 0.1 ms a megabyte.
    """
    seed = 0
    for part in context:
        seed = xxh3_64_intdigest(part, seed ^ len(part))
    chain: list[int] = []
    for message in messages:
        seed = xxh3_64_intdigest(message, seed)
        chain.append(seed)
    return chain
