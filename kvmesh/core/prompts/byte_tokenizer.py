"""A tokenizer that needs no model: one token per UTF-8 byte, markers for the chat's structure."""

from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.core.chat.chat import ChatInput, chat_of_texts, content_text
from kvmesh.core.prompts.segment_cache import unpack_ids
from kvmesh.errors import RequestError

TOOLS_ID: Final = 256
END_ID: Final = 257
FIELD_ID: Final = 258
OTHER_ROLE_ID: Final = 259
ROLE_IDS: Final = {"system": 260, "developer": 261, "user": 262, "assistant": 263, "tool": 264}
VOCAB_SIZE: Final = 320

_END: Final = chr(END_ID)
_FIELD: Final = chr(FIELD_ID)
_ROLES: Final = {role: chr(marker) for role, marker in ROLE_IDS.items()}
_EXTRA_FIELDS: Final = ("name", "tool_calls", "tool_call_id")


class ByteTokenizer:
    """Deterministic tokens without a model, for engines whose tokenizer is not configured.

    Prefix-stable: a longer conversation begins with the tokens of the shorter one, and an answer
    that follows the generation prompt byte by byte is a prefix of the next turn's prompt.
    Text becomes a string of code points below 256 and each marker one code point above, which are
    the ids: `BlockHashes` takes them from there.
    """

    name: str = "bytes"
    vocab_size: int = VOCAB_SIZE
    affixes: tuple[bytes, bytes] = (b"", b"")
    sees_media: bool = False
    inline_characters: int = 1 << 20
    """A thread hop costs more than a megabyte of bytes."""

    def bound_new_text(self, characters: float) -> None:
        """Do nothing: all text is as quickly read as what was seen before."""

    def pack_chat(self, chat: ChatInput, domain: str = "") -> str:
        """Return the prompt's ids as code points. O(bytes). Nothing is kept, so no `domain` is."""
        del domain
        parts: list[str] = []
        if chat.tools or chat.documents:
            parts += (chr(TOOLS_ID), _json_latin([chat.tools, chat.documents]), _END)
        last = len(chat.messages) - 1
        for index, message in enumerate(chat.messages):
            role = str(message.get("role", ""))
            parts.append(_ROLES.get(role) or f"{chr(OTHER_ROLE_ID)}{_latin(role)}{_FIELD}")
            content = message.get("content")
            text = content if isinstance(content, str) else content_text(content)
            parts.append(text if text.isascii() else _latin(text))
            for key in _EXTRA_FIELDS:
                value = message.get(key)
                if value:
                    parts += (_FIELD, _json_latin([key, value]))
            if index < last or not (chat.truncated or chat.continue_final_message):
                parts.append(_END)
        if chat.add_generation_prompt:
            parts.append(_ROLES["assistant"])
        return "".join(parts)

    def pack_messages(self, messages: Sequence[tuple[str, str]], domain: str = "") -> str:
        """Return what `pack_chat` does of a chat of these roles and contents."""
        return self.pack_chat(chat_of_texts(messages), domain)

    def encode_chat(self, chat: ChatInput) -> "array[int]":
        """Return the prompt's ids. O(bytes)."""
        return unpack_ids(self.pack_chat(chat))

    def pack(self, text: str, *, add_special_tokens: bool, domain: str = "") -> str:
        """Return one id per UTF-8 byte, as code points; there are no special tokens to add."""
        del add_special_tokens, domain
        return _latin(text)

    def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """Return what `pack` does, as integers."""
        return unpack_ids(self.pack(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the byte ids; markers are left out, broken UTF-8 is replaced."""
        return bytes([token for token in ids if token < TOOLS_ID]).decode("utf-8", "replace")


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuse an id outside 0..vocab_size-1: it would end some engines' scheduler.

    Raises `RequestError` naming the id and its position. O(n), about 10 ns an id.
    """
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    position = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
    raise RequestError(
        f"token id {ids[position]} at position {position} of the prompt is outside the model's "
        f"vocabulary 0..{vocab_size - 1}",
        param="prompt",
    )


def _latin(text: str) -> str:
    """Return a string with one code point per UTF-8 byte of `text`."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")


def _json_latin(value: object) -> str:
    """Return the compact JSON of `value`, one code point per byte."""
    return msgspec.json.encode(value).decode("latin-1")
