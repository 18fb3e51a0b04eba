"""From a request to its prompt's token ids, the same ids the engine will see."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvmesh.core.byte_tokenizer import ByteTokenizer, check_ids
from kvmesh.core.chat import ChatInput
from kvmesh.errors import ConfigError

__all__ = ["ByteTokenizer", "ChatInput", "Tokenizer", "check_ids", "load_tokenizer"]


class Tokenizer(Protocol):
    """Text and chats to token ids; deterministic, safe to call from several threads."""

    name: str
    vocab_size: int

    def encode_chat(self, chat: ChatInput) -> "array[int]":
        """Return the ids (u32) of the rendered chat. Raises `RequestError`."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """Return the ids (u32) of `text`; completions add special tokens, chats do not."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        ...

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse an id outside the vocabulary. Raises `RequestError` naming id and position."""
        ...

    def should_offload(self, text_length: int) -> bool:
        """Return whether a text of so many characters may hold the event loop too long."""
        ...


def load_tokenizer(path: str | None, *, template: str | None = None) -> Tokenizer:
    """Return the tokenizer of a Hugging Face model directory; None: the `ByteTokenizer`.

    `template` is a Jinja chat template that replaces the directory's own.
    Raises `ConfigError` naming the missing file and the remedy.
    """
    if path is None:
        return ByteTokenizer()
    directory = Path(path)
    raise ConfigError(f"tokenizer directory {directory}: template {template!r} is not loadable")
