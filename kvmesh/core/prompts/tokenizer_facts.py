"""What a model's tokenizer is made of, told and asked; without what makes it."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.engines.registry import DEFAULT_KIND, EngineKind
from kvmesh.core.prompts.segment_cache import AddedToken, CacheStatistics, EncodeBatch


class TooMuchNewTextError(Exception):
    """More text was not seen before than may be tokenised here at once."""


def _unbounded(_characters: float) -> None:
    pass


class TextBackend(msgspec.Struct, frozen=True):
    """A loaded tokenizer.json. `prefix` and `suffix` are what completions add around a text.

    After `bound_new_text`, `encode_batch` raises `TooMuchNewTextError` in the same thread for texts
    of more characters.
    """

    name: str
    note: str
    vocab_size: int
    added_tokens: tuple[AddedToken, ...]
    encode_batch: EncodeBatch
    decode: Callable[[Sequence[int]], str]
    prefix: bytes
    suffix: bytes
    inline_characters: int
    bound_new_text: Callable[[float], None] = _unbounded


class TokenizerOptions(msgspec.Struct, frozen=True):
    """How to tokenise as the engine does.

    `template_kwargs` are the engine's own default chat template arguments. `cache_bytes` bounds
    both caches together. `backend` "auto" takes fastokens when it is installed and agrees.
    """

    engine: EngineKind = DEFAULT_KIND
    template_kwargs: JsonObject = {}
    cache_bytes: int = 64 << 20
    backend: Literal["auto", "fastokens", "tokenizers"] = "auto"


class TokenizerStatistics(msgspec.Struct, frozen=True):
    """What runs and how well the caches do; `note` says why a faster backend is not used.

    `plain_chats` needed no run of their template, `other_chats` did, or were found among `prompts`;
    `unlike` says why the template must be run for chats that are only roles and texts, "" where
    that is not so.
    """

    backend: str
    note: str
    segments: CacheStatistics
    prompts: CacheStatistics
    plain_chats: int
    other_chats: int
    unlike: str
