"""The beginnings of sampled prompts: found by the prefixes they have, bounded, never more than
is shared.
"""

import pytest

from kvmesh.core.blocks.hashing import NO_HASHES, BlockHashes
from kvmesh.core.insight.prefix_texts import (
    EVERY_S,
    MOST_BLOCKS,
    MOST_BYTES,
    MOST_CHARS,
    MOST_PROMPTS,
    PrefixTexts,
    beginning_of,
)

CHAT = b'{"messages": [{"role": "system", "content": "You are\\n a baker. Be kind."}]}'


def test_a_prefix_says_what_a_prompt_with_it_says_as_far_as_it_goes() -> None:
    texts = PrefixTexts()
    texts.offer(CHAT, BlockHashes.of([7, 8, 9], 16), 0.0)

    assert texts.find(8, 2, 999) == "You are a baker. Be kind."
    assert texts.find(8, 2, 9) == "You are a"
    assert texts.find(8, 1, 999) == texts.find(7, 3, 999) == texts.find(9, 4, 999) == ""


def test_only_a_sample_is_read_and_the_newest_of_it_stay() -> None:
    texts = PrefixTexts()
    texts.offer(CHAT, BlockHashes.of([1], 16), 0.0)
    texts.offer(CHAT, BlockHashes.of([2], 16), 0.9 * EVERY_S)
    assert (texts.find(1, 1, 3), texts.find(2, 1, 3)) == ("You", "")

    for number in range(MOST_PROMPTS):
        texts.offer(CHAT, BlockHashes.of([3 + number], 16), 1.0 + number)
    assert (texts.find(1, 1, 3), texts.find(3, 1, 3)) == ("", "You")


def test_long_prompts_keep_their_beginning_and_long_bodies_are_not_read() -> None:
    texts = PrefixTexts()
    hashes = BlockHashes.of([*range(1, 2 * MOST_BLOCKS)], 16)
    texts.offer(CHAT, hashes, 0.0)
    assert texts.find(MOST_BLOCKS, MOST_BLOCKS, 3) == "You"
    assert texts.find(MOST_BLOCKS + 1, MOST_BLOCKS + 1, 3) == ""

    texts.offer(CHAT + b" " * MOST_BYTES, BlockHashes.of([9999], 16), 1.0)
    texts.offer(CHAT, NO_HASHES, 2.0)
    texts.offer(b'{"messages": []}', BlockHashes.of([9998], 16), 3.0)
    assert texts.find(9999, 1, 3) == texts.find(9998, 1, 3) == ""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"prompt": "once upon"}', "once upon"),
        (b'{"prompt": [1, 2]}', ""),
        (b'{"system": "be kind", "messages": [{"content": "hello"}]}', "be kind"),
        (b'{"system": [{"type": "text", "text": "be kind"}], "messages": []}', "be kind"),
        (b'{"messages": [{"content": [{"type": "image"}]}, {"content": "hi"}]}', "hi"),
        (b'{"messages": [{"content": ["x", {"text": 3}, {"text": "hi"}]}]}', "hi"),
        (b'{"messages": [{"content": null}]}', ""),
        (b'{"messages": [{"content": "' + b"x" * 9999 + b'"}]}', "x" * MOST_CHARS),
        (b"no json", ""),
        (b'{"messages": 3}', ""),
    ],
)
def test_the_first_words_are_those_that_people_wrote(body: bytes, text: str) -> None:
    assert beginning_of(body) == text
