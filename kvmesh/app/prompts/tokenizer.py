"""From a request to its prompt's token ids, the same ids the engine will see."""

from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, overload

from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.chat.template_call import Clock
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer, check_ids
from kvmesh.core.prompts.tokenizer_facts import TokenizerOptions, TokenizerStatistics

__all__ = [
    "ByteTokenizer",
    "ChatInput",
    "ModelTokenizer",
    "Tokenizer",
    "TokenizerOptions",
    "check_ids",
    "load_tokenizer",
]


class Tokenizer(Protocol):
    """Text and chats to token ids; deterministic, safe to call from several threads.

    `affixes` are the special tokens (u32s) that completions have in front and behind.
    `sees_media`: its chat templates print something in the place of a part that is no text.
    Text of more than `inline_characters` may hold the event loop for too long, about 2 ms.
    """

    name: str
    vocab_size: int
    affixes: tuple[bytes, bytes]
    inline_characters: int
    sees_media: bool

    def bound_new_text(self, characters: float) -> None:
        """Tokenise no more text at once in this thread that was not seen before: for more of it
        `TooMuchNewTextError` is raised, until the bound is infinite again.
        """
        ...

    def pack_chat(self, chat: ChatInput, domain: str = "") -> bytes | str:
        """Return the ids of the rendered chat as little-endian u32, or as code points.

        What was seen in one `domain` (a cache salt) makes no other quicker. Raises `RequestError`.
        """
        ...

    def pack_messages(self, messages: Sequence[tuple[str, str]], domain: str = "") -> bytes | str:
        """Return what `pack_chat` does of roles and contents that come with nothing else.

        The quickest way to the ids of such a chat. Raises `RequestError`.
        """
        ...

    def encode_chat(self, chat: ChatInput) -> "array[int]":
        """Return what `pack_chat` does, as integers. Raises `RequestError`."""
        ...

    def pack(self, text: str, *, add_special_tokens: bool, domain: str = "") -> bytes | str:
        """Return the ids of `text` as `pack_chat` does; completions add special tokens."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> "array[int]":
        """Return the ids (u32) of `text`; completions add special tokens, chats do not."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        ...


class ModelTokenizer(Tokenizer, Protocol):
    """The tokenizer of a model directory."""

    def statistics(self) -> TokenizerStatistics:
        """Return what runs, and how well its caches do."""
        ...


@overload
def load_tokenizer(
    path: str,
    *,
    template: str | None = None,
    options: TokenizerOptions | None = None,
    clock: Clock = datetime.now,
) -> ModelTokenizer: ...
@overload
def load_tokenizer(
    path: str | None,
    *,
    template: str | None = None,
    options: TokenizerOptions | None = None,
    clock: Clock = datetime.now,
) -> Tokenizer: ...
def load_tokenizer(
    path: str | None,
    *,
    template: str | None = None,
    options: TokenizerOptions | None = None,
    clock: Clock = datetime.now,
) -> Tokenizer:
    """Return the tokenizer of a Hugging Face model directory; None: the `ByteTokenizer`.

    `template` replaces the directory's chat template: a file, a template's text, or the name of
    one of the directory's templates. `clock` is the engines' local time, for templates with dates.
    Raises `ConfigError` naming the file and the remedy. Takes about a second for 150k tokens.
    """
    if path is None:
        return ByteTokenizer()
    # Loads Jinja and tokenizers: 20 ms, 7 MB.
    from kvmesh.app.prompts.tokenizer_files import read_tokenizer  # noqa: PLC0415

    return read_tokenizer(path, template, options or TokenizerOptions(), clock)
