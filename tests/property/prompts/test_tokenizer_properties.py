"""Remembered segments never change a result; the byte tokenizer is prefix-stable."""

import json
import re
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken as NewToken
from tokenizers import Tokenizer

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer, check_ids
from kvmesh.core.prompts.segment_cache import AddedToken, SegmentCache, token_pattern, unpack_ids
from tests.unit.app.prompts.tokenizer_models import MARKS, SPECIAL, train

HOSTILE = (
    NewToken("<|left|>", lstrip=True, normalized=False),
    NewToken("<|right|>", rstrip=True, normalized=False),
    NewToken("word", single_word=True, normalized=False),
    NewToken("<|im_start|><|im_end|>", normalized=False),
    NewToken("<|im_", normalized=False),
    NewToken("x<|im_start|>", normalized=False),
    NewToken("> <", normalized=False),
    NewToken("\n\n", normalized=False),
    NewToken("caf\u00e9", normalized=True),
)

METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
KINDS = ("byte level", "hostile tokens", "metaspace", "prepend")


@cache
def subject(kind: str) -> tuple[Tokenizer, SegmentCache]:
    """Return a tokenizer and its cache, small enough to drop entries, kept over all examples."""
    fields = json.loads(train(600))
    if kind in {"metaspace", "prepend"}:
        alphabet = "abcdefghijklmnopqrstuvwxyz \u2581<|>_\n\t."
        vocabulary = {character: i + 8 for i, character in enumerate(alphabet)}
        fields["model"] |= {"vocab": vocabulary, "merges": [], "unk_token": "a"}
        fields["normalizer"] = PREPEND if kind == "prepend" else None
        fields["pre_tokenizer"] = METASPACE if kind == "metaspace" else None
        fields["added_tokens"] = [
            token | {"id": i} for i, token in enumerate(fields["added_tokens"])
        ]
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    if kind == "hostile tokens":
        tokenizer.add_tokens(list(HOSTILE))

    def encode_batch(texts: Sequence[str]) -> list[bytes]:
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in encodings]

    tokens = [
        msgspec.convert(token, AddedToken, from_attributes=True)
        for token in tokenizer.get_added_tokens_decoder().values()
    ]
    return tokenizer, SegmentCache(tokens, encode_batch, capacity=8_000)


PIECES = st.one_of(
    st.sampled_from([*SPECIAL, *MARKS, *(str(token.content) for token in HOSTILE)]),
    st.sampled_from(["<|im_", "start|>", "<|", "|>", "im_end|>", " ", "  ", "\n", "\t ", "\u3000"]),
    st.sampled_from(
        ["word", "words", "a word ", "it's", "x = 1", "12", "cafe\u0301", "a", "\u0301"]
    ),
    st.text(max_size=6),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_remembered_segments_never_change_the_ids(kind: str, texts: list[str]) -> None:
    tokenizer, segments = subject(kind)

    for text in (*texts, "".join(texts), *reversed(texts)):
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        assert list(unpack_ids(segments.encode(text))) == wanted


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "critic"]),
            "content": st.none() | st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3),
        },
        optional={"name": st.text(max_size=5), "tool_call_id": st.text(max_size=3)},
    ),
    min_size=1,
    max_size=5,
)


@given(messages=MESSAGES, more=MESSAGES, tools=st.none() | st.just([{"type": "function"}]))
def test_bytes_of_a_longer_chat_begin_with_those_of_the_shorter(
    messages: list[dict[str, object]],
    more: list[dict[str, object]],
    tools: list[dict[str, object]] | None,
) -> None:
    tokenizer = ByteTokenizer()
    body = {"tools": tools, "add_generation_prompt": False}

    short = tokenizer.encode_chat(ChatInput.from_body({**body, "messages": messages}))
    long = tokenizer.encode_chat(ChatInput.from_body({**body, "messages": messages + more}))

    assert long[: len(short)] == short
    assert len(long) > len(short)
    check_ids(long, tokenizer.vocab_size)


@given(text=st.text())
def test_bytes_decode_to_the_text_they_came_from(text: str) -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


LETTERS = "<|ab>é漢\U0001f642\0.*[](){}\\^$+?-"
TOKENS = st.lists(st.text("<|ab>é.[(\\^-", min_size=1, max_size=5), min_size=1, unique=True)


@given(TOKENS, st.data())
def test_the_longest_token_is_found_at_each_place(tokens: list[str], data: Any) -> None:
    pieces = data.draw(st.lists(st.text(LETTERS, max_size=9) | st.sampled_from(tokens)))
    text = "".join(pieces)
    naive = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))

    found = re.compile(token_pattern(tokens)).finditer(text)

    assert [one.span() for one in found] == [one.span() for one in naive.finditer(text)]


def test_a_text_full_of_beginnings_takes_no_longer_than_another() -> None:
    tokens = [f"<|reserved_special_token_{number}|>" for number in range(1000)]
    search = re.compile(token_pattern(tokens))

    assert len(token_pattern(tokens)) < 20_000
    assert search.findall("<|reserved_special_token_99" * 4000) == []
