"""Token ids that engines put in the place of images, sounds and videos, learned once of each.

A template prints one token for a picture; the engine's processor makes many of it, how many depends
on the picture and on the model. Its blocks are keyed by the engine's name for the picture and by
where it begins.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh._native import pack_chain
from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import TOKEN_BYTES, BlockHashes, extend_hash
from kvmesh.core.engines.kv_events.dialect_fields import keys_digest
from kvmesh.core.prompts.segment_cache import ByteBudgetCache

CAPACITY_BYTES: Final = 32 << 20
"""Some 5,000 pictures of a thousand tokens, or 200,000 of those that repeat one token."""

MOST_ASKED: Final = 4096
"""Names of which it is remembered that they were asked for."""

MOST_TRIES: Final = 3
_END: Final = b"\n"
"""Ends the name in front of tokens."""


class Span(msgspec.Struct, frozen=True):
    """Tokens `start` to `start + length` of a prompt stand for the media of that name in blocks."""

    name: str
    start: int
    length: int


class Told(msgspec.Struct, frozen=True):
    """An engine's `ids` of a chat of one part, and the `name` of its own that it gives it; "": the
    one that it was sent.
    """

    ids: Sequence[int]
    name: str = ""


class MediaTokens:
    """The tokens of media by name. From any thread; the least recently used are dropped."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._runs = ByteBudgetCache[str](capacity_bytes)
        self._tries: dict[str, int] = {}
        self._asked: set[str] = set()

    def knows(self, name: str) -> bool:
        """Return whether the tokens of that name are known."""
        return bool(self._runs.get(name))

    def wants(self, name: str) -> bool:
        """Return whether to ask for them, which is taken for done: not while that is being done,
        nor where it was in vain.
        """
        if name in self._asked or self.gave_up(name) or self._runs.get(name) is not None:
            return False
        self._asked.add(name)
        return True

    def gave_up(self, name: str) -> bool:
        """Return whether asking was in vain: no engine answered, or not what can be followed."""
        return self._tries.get(name, 0) >= MOST_TRIES or self._runs.get(name) == b""

    def put_off(self, name: str) -> None:
        """Take it that nobody was asked, after all."""
        self._asked.discard(name)

    def learn(self, name: str, printed: Sequence[int], told: Told | None) -> None:
        """Take what an engine told of a chat of that one part, of which a template prints
        `printed`.

        None: it did not answer, and may be asked again.
        """
        self._asked.discard(name)
        if told is not None:
            run = _run_of(printed, told.ids)
            self._runs.put(name, told.name.encode() + _END + run if run else b"")
            return
        tries = self._tries.pop(name, 0)
        while len(self._tries) >= MOST_ASKED:
            self._tries.pop(next(iter(self._tries)), None)
        self._tries[name] = tries + 1

    def expand(self, packed: bytes, names: Sequence[str]) -> tuple[bytes, list[Span]] | None:
        """Return what an engine makes of a chat's printed ids (u32s), with media of these names in
        this order; None where these are not all that there are, or not known any more. O(tokens).
        """
        ids, made, spans, place, marks = array("I", packed), array("I"), list[Span](), 0, set[int]()
        for name in names:
            own, _, run = (self._runs.get(name) or _END).partition(_END)
            tokens = array("I", run)
            if not tokens:
                return None
            mark = tokens[0]
            marks.add(mark)
            try:
                found = ids.index(mark, place)
            except ValueError:
                return None
            made += ids[place:found]
            spans.append(Span(own.decode() or name, len(made), len(tokens) - 1))
            made += tokens[1:]
            place = found + 1
        rest = ids[place:]
        if not marks.isdisjoint(rest):
            return None
        return (made + rest).tobytes(), spans


def _run_of(printed: Sequence[int], engine: Sequence[int]) -> bytes:
    """Return the one token that a template prints for media, and what its engine makes of it, as
    u32s; b"" where that is not all in which their ids differ.
    """
    most = min(len(printed), len(engine))
    head = next((i for i in range(most) if printed[i] != engine[i]), most)
    tail = next((i for i in range(most) if printed[-1 - i] != engine[-1 - i]), most)
    # Of a mark that its engine repeats both count a part.
    first, last = sorted((head, len(printed) - tail))
    run = engine[first : len(engine) - (len(printed) - last)]
    if last - first != 1 or not run:
        return b""
    return array("I", (printed[first], *run)).tobytes()


def media_keys(
    spans: Sequence[Span], block_size: int, blocks: int
) -> dict[int, list[tuple[str, int]]]:
    """Return the keys of those of so many blocks that hold media, in their order: names, and where
    these begin in the block.
    """
    keys: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for span in spans:
        last = min((span.start + span.length - 1) // block_size, blocks - 1)
        for block in range(span.start // block_size, last + 1):
            keys[block].append((span.name, span.start - block * block_size))
    return keys


def spanned_hashes(
    spans: Sequence[Span],
    packed: bytes | memoryview,
    block_size: int,
    root: int,
    ids: bytes | memoryview | None = None,
) -> BlockHashes:
    """Return the hashes of packed u32 tokens some of which stand for media: each block that holds
    such is told apart by their names and places, as its engine's events tell (`extra_keys`).

    `ids` as `BlockHashes` takes them. O(tokens).
    """
    blocks = len(packed) // TOKEN_BYTES // block_size
    keys = media_keys(spans, block_size, blocks)
    hashes, seed, done = b"", root, 0
    for block in (*keys, blocks):
        if block > done:
            hashes += pack_chain(seed, packed, done * block_size, block_size, block - done)
            seed = int.from_bytes(hashes[-HASH_BYTES:], sys.byteorder)
        if block < blocks:
            seed = extend_hash(seed, keys_digest(keys[block]))
            hashes += pack_chain(seed, packed, block * block_size, block_size, 1)
            seed = int.from_bytes(hashes[-HASH_BYTES:], sys.byteorder)
        done = block + 1
    return BlockHashes.of(array("Q", hashes), block_size, ids, root)
