"""A model directory's files made into its tokenizer."""

import sys
import threading
from array import array
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec
from tokenizers import AddedToken as NewToken
from tokenizers import Tokenizer as TokenizerFile

from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import JsonObject
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import Clock
from kvmesh.core.prompts.encoder_check import check_samples, first_disagreement
from kvmesh.core.prompts.hf_tokenizer import HfTokenizer
from kvmesh.core.prompts.model_files import (
    ConfiguredToken,
    TokenizerConfig,
    model_vocab_size,
    parse_tokenizer_config,
)
from kvmesh.core.prompts.segment_cache import EncodeBatch, SegmentCache
from kvmesh.core.prompts.tokenizer_facts import (
    TextBackend,
    TokenizerOptions,
    TooMuchNewTextError,
)
from kvmesh.errors import ConfigError

INLINE_CHARACTERS: Final = {"tokenizers": 4_000, "fastokens": 16_000}
"""Unseen text worth about 2 ms, per backend: 0.5 and 0.15 us a character."""

CHECK_CACHE_BYTES: Final = 1 << 20


def read_tokenizer(
    path: str, template: str | None, options: TokenizerOptions, clock: Clock
) -> HfTokenizer:
    """Return the tokenizer of a directory, as `load_tokenizer` says. Raises `ConfigError`."""
    directory = _model_directory(path)
    config = parse_tokenizer_config(
        _read_json(directory / "tokenizer_config.json"),
        _read_json(directory / "special_tokens_map.json"),
    )
    sources = _template_sources(directory, config, template)
    templates = {
        name: ChatTemplate(
            source, config.named_tokens, clock, origin=f"{directory} (chat template {name})"
        )
        for name, source in sources.items()
    }
    return HfTokenizer(
        directory.name, _load_backend(directory, config, options), templates, options
    )


def _model_directory(path: str) -> Path:
    """Return the directory with a tokenizer.json in it."""
    directory = Path(path).expanduser().resolve()
    if directory.name == "tokenizer.json":
        directory = directory.parent
    if not directory.is_dir():
        raise ConfigError(
            f"tokenizer directory {path} does not exist: give a local model directory, made e.g. "
            "by `hf download MODEL --include 'tokenizer*' --include 'chat_template*' --include "
            "config.json --local-dir DIR`"
        )
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError(
            f'{directory / "tokenizer.json"} does not exist: make it with `python -c "from '
            f"transformers import AutoTokenizer as T; T.from_pretrained('{directory}')"
            f".save_pretrained('{directory}')\"`, or give no tokenizer to route by bytes"
        )
    return directory


def _read_json(file: Path) -> JsonObject:
    """Return a JSON object, empty when there is no such file. Raises `ConfigError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=JsonObject)
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(f"{file} cannot be read: {error}; download it again") from error


def _read_text(file: Path) -> str:
    """Return a text file's content. Raises `ConfigError`."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat template {file} cannot be read: {error}") from error


def _template_sources(
    directory: Path, config: TokenizerConfig, override: str | None
) -> dict[str, str]:
    """Return the directory's templates by name, newest file form first, or the override alone."""
    sources = dict(config.templates)
    if not sources:
        processor = _read_json(directory / "chat_template.json").get("chat_template")
        sources = {"default": processor} if isinstance(processor, str) else {}
    if (directory / "chat_template.jinja").is_file():
        sources = {"default": _read_text(directory / "chat_template.jinja")}
        named = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        sources |= {file.stem: _read_text(file) for file in named}
    if override is None:
        return sources
    if override in sources:
        return {"default": sources[override]}
    literal = "{" in override or "\n" in override
    return {"default": override if literal else _read_text(Path(override).expanduser())}


def _load_backend(
    directory: Path, config: TokenizerConfig, options: TokenizerOptions
) -> TextBackend:
    """Return the fastest backend that agrees with `tokenizers` on the check samples."""
    tokenizer = _load_file(directory / "tokenizer.json", config)
    added_tokens = tuple(_added_tokens(tokenizer))
    texts = check_samples(token.content for token in added_tokens)
    slow = _slow_encoder(tokenizer)
    fast, note = _fast_encoder(tokenizer, slow, texts, options)
    encode_batch = fast or slow
    cache = SegmentCache(added_tokens, encode_batch, capacity=CHECK_CACHE_BYTES)
    if first_disagreement(slow, lambda batch: [cache.encode(text) for text in batch], texts):
        note = f"{note}; segments depend on their neighbours, so whole prompts are encoded".strip(
            "; "
        )
        added_tokens = ()
    prefix, suffix = _affixes(tokenizer)
    size = model_vocab_size(_read_json(directory / "config.json"))
    bound = _NewText()
    return TextBackend(
        name="fastokens" if fast else "tokenizers",
        note=note,
        vocab_size=size or max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        added_tokens=added_tokens,
        encode_batch=bound.encoder(encode_batch),
        decode=lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True),
        prefix=prefix,
        suffix=suffix,
        inline_characters=INLINE_CHARACTERS["fastokens" if fast else "tokenizers"],
        bound_new_text=bound.set,
    )


class _NewText(threading.local):
    """How much text may be tokenised at once, in each thread."""

    most: float = inf

    def set(self, characters: float) -> None:
        """Have no more tokenised from now on."""
        self.most = characters

    def encoder(self, encode_batch: EncodeBatch) -> EncodeBatch:
        """Return `encode_batch`, which raises `TooMuchNewTextError` for more."""

        def bounded(texts: Sequence[str]) -> Sequence[bytes]:
            if sum(map(len, texts)) > self.most:
                raise TooMuchNewTextError
            return encode_batch(texts)

        return bounded


def _load_file(file: Path, config: TokenizerConfig) -> TokenizerFile:
    """Return tokenizer.json as transformers would use it, tokenizer_config.json applied."""
    try:
        tokenizer = TokenizerFile.from_file(str(file))
    except Exception as error:  # tokenizers raises the plain class for a bad file
        raise ConfigError(f"{file} cannot be loaded: {error}; download it again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    known = set(_added_tokens(tokenizer))
    fresh = [token for token in config.added_tokens if token not in known]
    tokenizer.add_tokens([NewToken(**msgspec.structs.asdict(token)) for token in fresh])
    texts = {token.content for token in known | set(fresh)}
    special = dict.fromkeys((*config.named_tokens.values(), *config.extra_tokens))
    tokenizer.add_special_tokens([NewToken(t, normalized=False) for t in special if t not in texts])
    return tokenizer


def _added_tokens(tokenizer: TokenizerFile) -> list[ConfiguredToken]:
    """Return the added tokens in id order."""
    by_id = sorted(tokenizer.get_added_tokens_decoder().items())
    return [msgspec.convert(token, ConfiguredToken, from_attributes=True) for _, token in by_id]


def _slow_encoder(tokenizer: TokenizerFile) -> EncodeBatch:
    """Return the reference encoder. The batch call releases the interpreter lock, `encode` not."""

    def encode_batch(texts: Sequence[str]) -> list[bytes]:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in encodings]

    return encode_batch


class FastTokenizer(Protocol):
    """What kvmesh uses of `fastokens.Tokenizer`."""

    def encode_batch_flat(
        self, inputs: list[str], add_special_tokens: bool = ...
    ) -> tuple[bytes, bytes]:
        """Return all ids as packed little-endian u32, and where each text's ids start, as u64."""
        ...


def _fast_encoder(
    tokenizer: TokenizerFile, slow: EncodeBatch, texts: Sequence[str], options: TokenizerOptions
) -> tuple[EncodeBatch | None, str]:
    """Return the fastokens encoder if it may be used, else None and why not."""
    if options.backend == "tokenizers":
        return None, ""
    try:
        loaded = import_module("fastokens").Tokenizer.from_json_str(tokenizer.to_str())
    except ImportError:
        note = "fastokens is not installed"
    except (ValueError, RuntimeError) as error:
        note = f"fastokens cannot load this tokenizer: {error}"
    else:
        fast = _flat_encoder(cast("FastTokenizer", loaded))
        text = first_disagreement(slow, fast, texts)
        if text is None and sys.byteorder == "little":
            return fast, ""
        note = f"fastokens disagrees with tokenizers on {text!r}"
    if options.backend == "fastokens":
        raise ConfigError(f"tokenizer backend fastokens was demanded, but {note}")
    return None, note


def _flat_encoder(tokenizer: FastTokenizer) -> EncodeBatch:
    """Return an encoder that makes no Python integer per token."""

    def encode_batch(texts: Sequence[str]) -> list[bytes]:
        ids, offsets = tokenizer.encode_batch_flat(list(texts), add_special_tokens=False)
        if len(texts) == 1:
            return [ids]
        bounds = memoryview(offsets).cast("Q")
        return [ids[4 * a : 4 * b] for a, b in pairwise(bounds)]

    return encode_batch


def _affixes(tokenizer: TokenizerFile) -> tuple[bytes, bytes]:
    """Return the packed ids a completion's text is put between."""
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    starts = range(len(whole) - len(bare) + 1)
    start = next((i for i in starts if whole[i : i + len(bare)] == bare), 0)
    end = start + len(bare)
    return array("I", whole[:start]).tobytes(), array("I", whole[end:]).tobytes()
