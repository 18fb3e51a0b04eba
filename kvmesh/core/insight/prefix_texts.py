"""What hot prefixes say: the first words of a sample of prompts, where that may be kept."""

from array import array
from collections import deque
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.blocks.hashing import Hashes

EVERY_S: Final = 0.25
"""A prompt is kept at most so often."""

MOST_PROMPTS: Final = 128
MOST_BLOCKS: Final = 512
"""Of a prompt's hashes, 4 KB: longer prefixes have no text of their own."""

MOST_CHARS: Final = 160
MOST_BYTES: Final = 1 << 18
"""Longer bodies are not read: that takes some 0.5 ms."""


class _Message(msgspec.Struct):
    content: object = None


class _Body(msgspec.Struct):
    prompt: object = None
    messages: tuple[_Message, ...] = ()
    system: object = None


class PrefixTexts:
    """The newest `MOST_PROMPTS` sampled prompts, 0.6 MB; times are the caller's, seconds."""

    def __init__(self) -> None:
        self._kept: deque[tuple[array[int], str]] = deque(maxlen=MOST_PROMPTS)
        self._next_s = float("-inf")

    def offer(self, body: bytes, hashes: Hashes, now: float) -> None:
        """Keep the beginning of a prompt, if it is time for one."""
        if now < self._next_s or len(body) > MOST_BYTES or not hashes.blocks:
            return
        self._next_s = now + EVERY_S
        if text := beginning_of(body):
            most = min(hashes.blocks, MOST_BLOCKS)
            self._kept.append((hashes.upto(most)[:most], text))

    def find(self, key: int, depth: int, tokens: int) -> str:
        """Return the beginning of the prefix of `depth` blocks, `tokens`, that ends with the block
        `key`; "" where no such prompt was kept. Of these tokens each is a character at least: no
        more is told, so that nothing is that others do not share. O(prompts).
        """
        place = depth - 1
        for hashes, text in reversed(self._kept):
            if place < len(hashes) and hashes[place] == key:
                return text[:tokens]
        return ""


def beginning_of(body: bytes) -> str:
    """Return the first words that people wrote in the body of a chat, messages or completion; ""
    for a body that has none.
    """
    try:
        read = msgspec.json.decode(body, type=_Body)
    except UNREADABLE:
        return ""
    contents = (read.system, *(one.content for one in read.messages), read.prompt)
    found = (text for one in contents if (text := _text_of(one)))
    return " ".join(next(found, "").split())[:MOST_CHARS]


def _text_of(content: object) -> str:
    """Return a content's text, of one in parts that of its first text."""
    if isinstance(content, list):
        texts = (one.get("text") for one in content if isinstance(one, dict))
        content = next((one for one in texts if isinstance(one, str)), "")
    return content[: 8 * MOST_CHARS] if isinstance(content, str) else ""
