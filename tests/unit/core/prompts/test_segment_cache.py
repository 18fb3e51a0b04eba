from array import array
from collections.abc import Callable, Sequence

import pytest

from kvmesh._native import TextCache
from kvmesh.core.chat.opaque_text import Piece, Slot
from kvmesh.core.prompts.segment_cache import (
    ENTRY_OVERHEAD,
    AddedToken,
    ByteBudgetCache,
    CacheStatistics,
    SegmentCache,
    unpack_ids,
)

MakeCache = Callable[[int], ByteBudgetCache[str] | TextCache]
each_cache = pytest.mark.parametrize("make", [ByteBudgetCache[str], TextCache])
START = AddedToken("<|s|>", normalized=False)


class Encoder:
    """Encodes by code points and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        self.asked += texts
        return [array("I", map(ord, text)).tobytes() for text in texts]


def decode(packed: bytes) -> str:
    return "".join(map(chr, unpack_ids(packed)))


def test_only_new_segments_are_tokenised() -> None:
    encoder = Encoder()
    cache = SegmentCache([START], encoder, capacity=1 << 20)

    first = cache.encode("a<|s|>b<|s|>c")
    second = cache.encode("a<|s|>b<|s|>c<|s|>d<|s|>d")

    assert (decode(first), decode(second)) == ("a<|s|>b<|s|>c", "a<|s|>b<|s|>c<|s|>d<|s|>d")
    assert (encoder.asked, cache.statistics().hits) == (["a", "<|s|>b", "<|s|>c", "<|s|>d"], 3)
    assert cache.statistics().misses == 5


@pytest.mark.parametrize(
    ("token", "atomic"),
    [
        (AddedToken("<|a|>", normalized=False), True),
        (AddedToken("<\uff5cUser\uff5c>", normalized=False), True),
        (AddedToken("<a>"), False),
        (AddedToken("<a>", normalized=False, lstrip=True), False),
        (AddedToken("<a>", normalized=False, rstrip=True), False),
        (AddedToken("<a>", normalized=False, single_word=True), False),
        (AddedToken("a>", normalized=False), False),
        (AddedToken("<a", normalized=False), False),
        (AddedToken("<a> ", normalized=False), False),
        (AddedToken("", normalized=False), False),
    ],
)
def test_only_tokens_no_neighbour_can_see_through_are_atomic(
    token: AddedToken, atomic: bool
) -> None:
    assert token.is_atomic is atomic


@each_cache
def test_the_cache_stays_within_its_budget_and_keeps_what_is_used(make: MakeCache) -> None:
    cache = make(20 * (ENTRY_OVERHEAD + 60))
    cache.put("hot", b"1")

    for number in range(200):
        assert cache.get("hot") == b"1"
        cache.put(f"cold {number}", b"2")
        kept = CacheStatistics(*cache.figures())
        assert kept.size <= kept.capacity

    assert cache.get("cold 0") is None
    assert CacheStatistics(*cache.figures()).entries < 40


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (["<|s|>a", Slot(0), "b<|s|>c"], [["<|s|>a", Slot(0), "b"], ["<|s|>c"]]),
        (["a", Slot(0), "<|s|>", Slot(1)], [["a", Slot(0)], ["<|s|>", Slot(1)]]),
        ([Slot(0)], [[Slot(0)]]),
        (["a<|s|>", Slot(0)], [["a"], ["<|s|>", Slot(0)]]),
        (["<|s|>a<|s|>"], [["<|s|>a"], ["<|s|>"]]),
        (["a"], [["a"]]),
        ([], []),
        ([Slot(0), Slot(1)], None),
        (["a<|s", Slot(0)], None),
        ([Slot(0), "|>"], None),
        ([Slot(0), "<", Slot(1)], None),
        (["<", Slot(0), "b"], None),
    ],
)
def test_literals_around_texts_are_cut_where_a_whole_text_would_be(
    pieces: list[Piece], wanted: list[list[Piece]] | None
) -> None:
    assert SegmentCache([START], Encoder(), capacity=1 << 20).cut(pieces) == wanted


@pytest.mark.parametrize("other", ["\uff5c|", "\0|"])
def test_a_token_that_the_compiled_core_does_not_look_for_cuts_texts_as_any_other(
    other: str,
) -> None:
    encoder = Encoder()
    tokens = [START, AddedToken(other, normalized=False), AddedToken("é<|s|>", normalized=False)]
    cache = SegmentCache(tokens, encoder, capacity=1 << 20)

    cache.encode(f"a<|s|>b é<|s|>{other}c")

    assert (encoder.asked, cache.encode("")) == (["a", "<|s|>b é<|s|>", f"{other}c"], b"")


@each_cache
def test_one_huge_entry_does_not_empty_the_cache(make: MakeCache) -> None:
    cache = make(1000)
    cache.put("small", b"1")

    cache.put("huge", b"x" * 900)
    cache.put("small", b"changed")

    assert cache.get("huge") is None
    assert cache.get("small") == b"1"
