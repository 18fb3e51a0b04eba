"""What a Hugging Face model directory says about its tokenizer, once its files are decoded."""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from kvmesh.core.chat import JsonObject
from kvmesh.core.segment_cache import AddedToken
from kvmesh.errors import ConfigError

NAMED_TOKENS: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class ConfiguredToken(AddedToken, frozen=True):
    """A token of tokenizer_config.json that tokenizer.json may lack."""

    special: bool = False


class TokenizerConfig(msgspec.Struct, frozen=True):
    """The part of tokenizer_config.json that changes ids.

    `named_tokens` are the template's variables, `added_tokens` in id order. `add_bos` and
    `add_eos` are None unless one of them is written in the file: then they replace the
    post-processor.
    """

    named_tokens: dict[str, object] = {}
    added_tokens: tuple[ConfiguredToken, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None
    templates: dict[str, str] = {}


def parse_tokenizer_config(config: JsonObject, token_map: JsonObject) -> TokenizerConfig:
    """Return what tokenizer_config.json says; `token_map` is special_tokens_map.json or empty.

    The map counts only for old files without `added_tokens_decoder`.
    Source: transformers 5.23 `tokenization_utils_{base,tokenizers}.py`.
    """
    decoder = config.get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        config = config | token_map
    named: dict[str, object] = {}
    for key in NAMED_TOKENS:
        if content := _content(config.get(key)):
            named[key] = content
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    if isinstance(extra, dict):
        named |= {k: _content(v) for k, v in cast("JsonObject", extra).items()}
    elif isinstance(extra, list):
        named["additional_special_tokens"] = [_content(v) for v in cast("list[object]", extra)]
    explicit = "add_bos_token" in config or "add_eos_token" in config
    return TokenizerConfig(
        named_tokens=named,
        added_tokens=_added_tokens(cast("JsonObject", decoder or {})),
        add_bos=bool(config.get("add_bos_token")) and "bos_token" in named if explicit else None,
        add_eos=bool(config.get("add_eos_token")) and "eos_token" in named if explicit else None,
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
