"""Token ids of text already seen, kept per segment between special tokens.

A chat's next turn repeats every segment but the last, so only the new message is tokenised.
"""

import re
import sys
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice, pairwise
from typing import Final, Generic, TypeAlias, TypeVar, cast

import msgspec

from kvmesh._native import ENTRY_OVERHEAD as _ENTRY_OVERHEAD
from kvmesh._native import TextCache
from kvmesh.core.chat.opaque_text import Piece, Slot

EncodeBatch = Callable[[Sequence[str]], Sequence[bytes]]
"""Texts to packed u32 ids, each text on its own, no special tokens added."""

ENTRY_OVERHEAD: Final = _ENTRY_OVERHEAD
"""Bytes of a dict slot and the value's header, counted with every entry."""

_OUTER_CHARACTERS: Final = re.compile(r"[^\w\s]")

Key = TypeVar("Key", bound=Hashable)


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of tokenizer.json's `added_tokens` that decides where text may be split."""

    content: str
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    @property
    def is_atomic(self) -> bool:
        """Return whether the text on either side is tokenised as if the other were not there.

        True when the token is matched before normalisation, takes no surrounding blanks, and
        starts and ends with neither a blank nor a word character, so that no neighbour's strip
        or whole-word rule can see through it.
        """
        if self.normalized or self.lstrip or self.rstrip or self.single_word or not self.content:
            return False
        first, last = self.content[0], self.content[-1]
        return bool(_OUTER_CHARACTERS.match(first) and _OUTER_CHARACTERS.match(last))


class CacheStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `size` and `capacity` are bytes."""

    hits: int
    misses: int
    entries: int
    size: int
    capacity: int


class ByteBudgetCache(Generic[Key]):
    """Immutable bytes by key, the least recently used dropped, within `capacity` bytes.

    Two generations: a hit in the old one moves to the young one; a young one that reaches half
    the capacity becomes the old one. No lock and no order list: every step is one dict operation,
    so threads may share it, at worst computing an entry twice. O(1).
    """

    def __init__(self, capacity: int) -> None:
        self._half = max(capacity // 2, 1)
        self._young: dict[Key, bytes] = {}
        self._old: dict[Key, bytes] = {}
        self._young_size = 0
        self._old_size = 0
        self._hits = 0
        self._misses = 0

    def get(self, key: Key) -> bytes | None:
        """Return the value and mark it used; None when it is unknown or was dropped."""
        value = self._young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is None:
                self._misses += 1
                return None
            self.put(key, value)
        self._hits += 1
        return value

    def put(self, key: Key, value: bytes) -> None:
        """Remember `value`; an entry above a quarter of the capacity is not worth its room."""
        size = sys.getsizeof(key) + len(value) + ENTRY_OVERHEAD
        if size > self._half // 2 or key in self._young:
            return
        if self._young_size + size > self._half:
            self._old, self._old_size = self._young, self._young_size
            self._young, self._young_size = {}, 0
        self._young[key] = value
        self._young_size += size

    def statistics(self) -> CacheStatistics:
        """Return the counters; an entry in both generations counts twice, as does its size."""
        return CacheStatistics(*self.figures())

    def figures(self) -> tuple[int, int, int, int, int]:
        """Return what `CacheStatistics` is made of."""
        entries, size = len(self._young) + len(self._old), self._young_size + self._old_size
        return self._hits, self._misses, entries, size, 2 * self._half


_Node: TypeAlias = "dict[str, _Node]"
"""What follows a beginning that tokens share, by the next character; "": a token ends there."""


def token_pattern(tokens: Iterable[str]) -> str:
    """Return a regular expression that finds the leftmost of `tokens`, at each place the longest.

    Beginnings that tokens share stand in it once: a place costs no more characters than the longest
    token has, however many there are, and whatever the text is full of.
    """
    root: _Node = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return _pattern_of(root)


def _pattern_of(node: _Node) -> str:
    """Return what matches behind a beginning that tokens share."""
    run = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        run += re.escape(character)
    longer = [re.escape(one) + _pattern_of(behind) for one, behind in node.items() if one]
    if not longer:
        return run
    return f"{run}(?:{'|'.join(longer)})" + ("?" if "" in node else "")


class SegmentCache:
    """Encodes text as the concatenation of its segments, remembering each segment's ids.

    A segment begins with an atomic added token and reaches to the next one. A tokenizer cuts at
    those tokens before anything else, so the ids are those of the whole text. All other tokens
    matched before normalisation take part in the search, since the leftmost longest one wins.
    Source: Hugging Face tokenizers `added_vocabulary.rs`, `extract_and_normalize`.
    """

    def __init__(
        self, added_tokens: Iterable[AddedToken], encode_batch: EncodeBatch, *, capacity: int
    ) -> None:
        searched = {token.content: token for token in added_tokens if not token.normalized}
        ordered = sorted(filter(None, searched), key=len, reverse=True)
        self.atomic = frozenset(text for text, token in searched.items() if token.is_atomic)
        self._search = re.compile(token_pattern(ordered)) if self.atomic else None
        starts = {text[0] for text in self.atomic}
        self._dividing = [text for text in ordered if not starts.isdisjoint(text)]
        heads = {text[:end] for text in self._dividing for end in range(1, len(text))}
        self._heads = tuple(heads)
        self.encode_batch = encode_batch
        self.cache = TextCache(capacity)

    def encode(self, text: str, domain: str = "") -> bytes:
        """Return the packed u32 ids of `text`. O(length), tokenising only unknown segments.

        What is known in one `domain` is unknown in all others, so that no time tells of their text.
        """
        return b"".join(self.lookup(self._split(text), domain))

    def encode_apart(self, texts: Sequence[str], domain: str = "") -> list[bytes]:
        """Return what `encode` does of each text, unknown segments tokenized at once."""
        split = [self._split(text) for text in texts]
        found = iter(self.lookup([one for segments in split for one in segments], domain))
        return [b"".join(islice(found, len(segments))) for segments in split]

    def starts_anew(self, text: str) -> bool:
        """Return whether the ids of a text are the same behind any that does not end open."""
        return not text or self._starts(text)

    def ends_open(self, text: str) -> bool:
        """Return whether a token may begin in a text and end in one that starts anew."""
        return text.endswith(self._heads)

    def lookup(self, segments: Sequence[str], domain: str = "") -> list[bytes]:
        """Return the packed ids of each segment, tokenising unknown ones."""
        if domain:
            return self._lookup_apart(segments, domain)
        cache = self.cache
        kept = cache.find(list(segments))
        if None not in kept:
            return cast("list[bytes]", kept)
        missing = [place for place, ids in enumerate(kept) if ids is None]
        found = [ids or b"" for ids in kept]
        unknown = segments if len(missing) == len(segments) else [segments[i] for i in missing]
        unique = unknown if len(unknown) == 1 else list(dict.fromkeys(unknown))
        fresh = dict(zip(unique, self.encode_batch(unique), strict=True))
        for segment, ids in fresh.items():
            cache.put(segment, ids)
        for position in missing:
            found[position] = fresh[segments[position]]
        return found

    def _lookup_apart(self, segments: Sequence[str], domain: str) -> list[bytes]:
        # No text without a domain begins like this: a lone surrogate cannot be encoded.
        start = f"\ud800{len(domain)}:{domain}"
        known = {segment: self.cache.get(start + segment) for segment in segments}
        missing = [segment for segment, ids in known.items() if ids is None]
        found = dict(zip(missing, self.encode_batch(missing), strict=True)) if missing else {}
        for segment, ids in found.items():
            self.cache.put(start + segment, ids)
        return [known[segment] or found.get(segment, b"") for segment in segments]

    def statistics(self) -> CacheStatistics:
        """Return the counters of the segments looked up."""
        return CacheStatistics(*self.cache.figures())

    def cut(self, pieces: Sequence[Piece]) -> list[list[Piece]] | None:
        """Return the segments of a text of which only `pieces` are known: literals, and slots.

        Right for all texts without any of `atomic`. None where the slots' texts could make or break
        a token together with the literals beside them.
        """
        if self._search is None:
            return [list(pieces)] if pieces else []
        if any(map(self._may_straddle, ("", *pieces), (*pieces, ""))):
            return None
        segments: list[list[Piece]] = [[]]
        for piece in pieces:
            if isinstance(piece, Slot):
                segments[-1].append(piece)
                continue
            first, *others = self._split(piece)
            if self._starts(first):
                segments.append([])
            segments[-1].append(first)
            segments.extend([one] for one in others)
        return [segment for segment in segments if segment]

    def _starts(self, segment: str) -> bool:
        """Return whether a segment begins with an atomic token."""
        found = self._search.match(segment) if self._search else None
        return found is not None and found[0] in self.atomic

    def _may_straddle(self, before: Piece, after: Piece) -> bool:
        """Return whether a token may lie on the border of a literal and a slot."""
        if isinstance(before, str) == isinstance(after, str):
            return not isinstance(before, str)
        for token in self._dividing:
            for cut in range(1, len(token)):
                head, tail = token[:cut], token[cut:]
                if isinstance(before, str) and before.endswith(head):
                    return True
                if isinstance(after, str) and after and _share_start(after, tail):
                    return True
        return False

    def _split(self, text: str) -> list[str]:
        """Return the segments; their concatenation is `text`."""
        if self._search is None:
            return [text] if text else []
        atomic = self.atomic
        starts = [match.start() for match in self._search.finditer(text) if match[0] in atomic]
        bounds = [0, *starts, len(text)]
        return [text[a:b] for a, b in pairwise(bounds) if a < b]


def _share_start(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def unpack_ids(packed: bytes | str) -> "array[int]":
    """Return ids as an array: packed native u32s, or a string's code points."""
    ids = array("I")
    if isinstance(packed, str):
        packed = packed.encode("utf-32-le", "surrogatepass")
    ids.frombytes(packed)
    return ids
