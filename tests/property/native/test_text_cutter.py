"""Texts are cut as by the regular expression: at atomic tokens, the leftmost and longest first."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh import _native
from kvmesh._native import TextCache, TextCutter
from kvmesh.core.prompts.segment_cache import AddedToken, SegmentCache
from tests.property.support.starving import starved

native: Any = _native
LETTERS = "<|ab>é漢\U0001f642\0"
TOKENS = st.lists(st.text("<|ab>é", min_size=1, max_size=5), min_size=1, max_size=6, unique=True)


def cut_by_search(text: str, tokens: list[str], atomic: frozenset[str]) -> list[str]:
    search = re.compile("|".join(map(re.escape, tokens)))
    starts = [found.start() for found in search.finditer(text) if found[0] in atomic]
    bounds = [0, *starts, len(text)]
    return [text[a:b] for a, b in pairwise(bounds) if a < b]


@given(TOKENS, st.data())
def test_a_text_is_cut_where_the_search_finds_tokens(tokens: list[str], data: Any) -> None:
    ordered = sorted((one for one in tokens if one[0].isascii()), key=len, reverse=True)
    if not ordered:
        return
    atomic = frozenset(data.draw(st.lists(st.sampled_from(ordered))))
    pieces = data.draw(st.lists(st.one_of(st.text(LETTERS, max_size=9), st.sampled_from(ordered))))
    text = "".join(pieces)

    parts = TextCutter(tuple(ordered), atomic).cut(text)

    assert parts == cut_by_search(text, ordered, atomic)
    assert "".join(parts) == text


def test_a_cache_of_segments_cuts_by_it() -> None:
    tokens = [AddedToken("<|im_start|>", False), AddedToken("<|im_end|>", False), AddedToken("ab")]
    cache = SegmentCache(tokens, lambda texts: [b"x" for _ in texts], capacity=1 << 16)

    assert cache.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>") == b"xxx"
    assert cache.encode("") == b""


@pytest.mark.parametrize(
    "misuse",
    [
        native.TextCutter,
        lambda: native.TextCutter([], frozenset()),
        lambda: native.TextCutter(("a",), {"a"}),
        lambda: native.TextCutter((1,), frozenset()),
        lambda: native.TextCutter(("",), frozenset()),
        lambda: native.TextCutter(("é",), frozenset()),
        lambda: native.TextCutter(("\0",), frozenset()),
        lambda: native.TextCutter(("a", "ab"), frozenset()),
        lambda: native.TextCutter(("a",), frozenset(("a",))).cut(b"a"),
        lambda: native.TextCache(9).find(("a",)),
        lambda: native.TextCache(9).find([1]),
    ],
)
def test_misuse_is_an_error(misuse: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        misuse()


def test_without_memory_nothing_is_cut() -> None:
    cutter = TextCutter(("<|a|>",), frozenset(("<|a|>",)))
    text = "<|a|>one" * 40
    failed = sum(starved(number, cutter.cut, text) is None for number in range(60))

    assert failed > 1
    assert cutter.cut(text) == ["<|a|>one"] * 40


def test_texts_are_found_together() -> None:
    cache = TextCache(1 << 12)
    cache.put("a", b"1")

    assert cache.find(["a", "b", "a"]) == [b"1", None, b"1"]
    assert cache.find([]) == []
    assert cache.figures()[:2] == (2, 1)
