"""What a Hugging Face model directory says about its tokenizer, once its files are decoded."""

from collections.abc import Mapping
from typing import cast

import msgspec

from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.prompts.segment_cache import AddedToken
from kvmesh.errors import ConfigError


class ConfiguredToken(AddedToken, frozen=True):
    """A token of tokenizer_config.json that tokenizer.json may lack."""

    special: bool = False


class TokenizerConfig(msgspec.Struct, frozen=True):
    """The part of tokenizer_config.json that changes ids.

    `named_tokens` (bos_token, ...) are variables of the template. `added_tokens`, in id order, and
    `extra_tokens` belong to the vocabulary whether or not tokenizer.json lists them. Whether a
    completion gets a BOS is tokenizer.json's business; `add_bos_token` is ignored beside it.
    """

    named_tokens: dict[str, str] = {}
    added_tokens: tuple[ConfiguredToken, ...] = ()
    extra_tokens: tuple[str, ...] = ()
    templates: dict[str, str] = {}


def parse_tokenizer_config(
    config: Mapping[str, object], token_map: Mapping[str, object]
) -> TokenizerConfig:
    """Return what tokenizer_config.json says; `token_map` is special_tokens_map.json or empty.

    The map counts only for old files without `added_tokens_decoder`. Raises `ConfigError`.
    Source: transformers 5.23 `tokenization_utils_{base,tokenizers}.py`.
    """
    decoder = config.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        config = {**config, **token_map}
    named = {key: _content(value) for key, value in config.items() if key.endswith("_token")}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    listed: list[object] = []
    if isinstance(extra, dict):
        named |= {key: _content(value) for key, value in cast("JsonObject", extra).items()}
    elif isinstance(extra, list):
        listed = cast("list[object]", extra)
    return TokenizerConfig(
        named_tokens={key: content for key, content in named.items() if content is not None},
        added_tokens=_added_tokens(cast("JsonObject", decoder or {})),
        extra_tokens=tuple(token for token in map(_content, listed) if token is not None),
        templates=_templates(config.get("chat_template")),
    )


def model_vocab_size(config: Mapping[str, object]) -> int | None:
    """Return the embedding's size from config.json: the ids an engine can take."""
    text_config = config.get("text_config")
    for source in (config, cast("JsonObject", text_config)):
        size = source.get("vocab_size") if isinstance(source, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return None


def _content(token: object) -> str | None:
    """Return a token's text, written as a string or as an object."""
    if isinstance(token, dict):
        token = cast("JsonObject", token).get("content")
    return token if isinstance(token, str) else None


def _added_tokens(decoder: JsonObject) -> tuple[ConfiguredToken, ...]:
    """Return the tokens of `added_tokens_decoder`, by id."""
    try:
        tokens = msgspec.convert(decoder, dict[str, ConfiguredToken])
        return tuple(tokens[key] for key in sorted(tokens, key=int))
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"tokenizer_config.json, added_tokens_decoder: {error}") from error


def _templates(value: object) -> dict[str, str]:
    """Return templates by name: a single one is `default`."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    entries = [cast("JsonObject", e) for e in cast("list[object]", value) if isinstance(e, dict)]
    return {str(entry.get("name")): str(entry.get("template")) for entry in entries}
