"""Single fields of engine events, each checked once: a wrong type is a `CodecError`, never more."""

import re
from array import array
from collections.abc import Sequence, Sized
from math import inf
from typing import Final, cast

import msgspec
import xxhash

from kvmesh.bounds import MAX_TEXT, MAX_TOKENS, shown
from kvmesh.core.blocks.hashing import TOKEN_BYTES
from kvmesh.errors import CodecError

MOST_LOOKAHEAD: Final = 64
"""Token ids behind a block that its hash may cover."""

_MASK: Final = (1 << 64) - 1
_MOST_REASON: Final = 80
_PAIR: Final = 2
_encoder = msgspec.msgpack.Encoder()


def text_of(value: object) -> str:
    """Return what an event holds as an error message shows it: short, whatever it is."""
    if isinstance(value, str | int | float):
        return shown(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, Sized) else kind


def as_list(value: object) -> list[object] | None:
    """Return `value` if it is a list, else None."""
    return cast("list[object]", value) if isinstance(value, list) else None


def text(value: object, name: str) -> str:
    """Return `value` as text of at most `MAX_TEXT` characters."""
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        return value
    raise CodecError(f"engine event: {name} is {text_of(value)}, not text")


def optional_text(value: object, name: str) -> str | None:
    """Return `value` as text, or None."""
    return None if value is None else text(value, name)


def non_negative(value: object, name: str) -> int:
    """Return `value` as a number from 0 to `MAX_TOKENS`."""
    if isinstance(value, int) and 0 <= value <= MAX_TOKENS:
        return int(value)
    raise CodecError(f"engine event: {name} is {text_of(value)}, not a number >= 0 that can be")


def block_hash(value: object) -> int:
    """Return an engine's block hash as unsigned 64-bit; bytes count by their last eight.

    The same digest sent as int, its low 64 bits, or as bytes gives the same value.
    """
    if isinstance(value, int):
        return value & _MASK
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise CodecError(f"engine event: a block hash is {text_of(value)}, not a number or bytes")


def block_hashes(value: object) -> tuple[int, ...]:
    """Return a list of block hashes."""
    if not isinstance(value, list):
        raise CodecError(f"engine event: block_hashes is {text_of(value)}, not a list")
    return tuple(map(block_hash, cast("list[object]", value)))


def tokens(value: object) -> bytes:
    """Return token ids as u32 little-endian.

    Bigram mode (EAGLE) sends pairs `(token, next token)`; the first of each is the token. A text or
    a number beyond (TensorRT-LLM, SGLang: what an image's place holds) becomes one that is no
    prompt's token id.
    """
    if not isinstance(value, list):
        raise CodecError(f"engine event: token_ids is {text_of(value)}, not a list")
    ids = cast("list[object]", value)
    if ids and isinstance(ids[0], list):
        ids = [_first(pair) for pair in ids]
    try:
        packed = array("I", cast("list[int]", ids))
    except (TypeError, OverflowError) as error:
        if any(map(_is_place, ids)):
            return tokens([_place(str(one)) if _is_place(one) else one for one in ids])
        raise CodecError(f"engine event: token_ids holds no u32 token id: {error}") from error
    return packed.tobytes()


def _is_place(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and value >> 32 > 0)


def _place(content: str) -> int:
    """Return what stands for a text among token ids: at least 2^31, which no router takes for one.

    Other content gives other numbers but for one in 2^31; blocks of it are told apart by their
    extra keys besides.
    """
    return 1 << 31 | xxhash.xxh3_64_intdigest(content.encode("utf-8", "surrogatepass")) >> 33


def with_metadata(fields: dict[str, object]) -> dict[str, object]:
    """Return an array's fields with those that SGLang once sent together in one map at the end, at
    the place of the adapter's name.
    """
    metadata = fields.get("lora_name")
    if not isinstance(metadata, dict):
        return fields
    named = cast("dict[str, object]", metadata)
    return fields | {"lora_name": named.get("lora_name"), "cache_salt": named.get("cache_salt")}


def _first(pair: object) -> object:
    items = as_list(pair)
    if not items:
        raise CodecError(f"engine event: token_ids mixes pairs and {text_of(pair)}")
    return items[0]


def lookahead(value: object, blocks: int) -> tuple[bytes, ...]:
    """Return, for each block, the token ids behind it that its hash covers, as `tokens` does."""
    if value is None:
        return ()
    lists = as_list(value)
    if lists is None or len(lists) != blocks:
        raise CodecError(
            f"engine event: lookahead_token_ids is {text_of(value)}, not one list a block"
        )
    packed = tuple(map(tokens, lists))
    if not packed or not packed[0]:
        return ()
    if len(packed[0]) > MOST_LOOKAHEAD * TOKEN_BYTES or len(set(map(len, packed))) > 1:
        raise CodecError(
            f"engine event: lookahead_token_ids has {len(packed[0]) // TOKEN_BYTES} ids a block,"
            f" or not the same number for each: up to {MOST_LOOKAHEAD} can be followed"
        )
    return packed


def reason_of(error: Exception) -> str:
    """Return what is wrong with an event, without the value: few are told apart."""
    words = re.sub(r"\d+", "N", str(error).split(" is ", 1)[0])
    return words[:_MOST_REASON] or type(error).__name__


def extras(
    value: object, blocks: int, *, lora: str | None, first: bool, within: float = inf
) -> tuple[str | None, tuple[int, ...]]:
    """Return (cache salt, one digest a block) of untagged `extra_keys`.

    A block's keys are the adapter's name, (image, offset) pairs, the cache salt (only the `first`
    block of a sequence) and digests of prompt embeddings, in this order and without labels. A first
    block's only remaining text is taken as the salt; everything else stays opaque, so that two
    sequences that differ in it never share a content hash. Digest 0 stands for nothing. Images that
    begin `within` tokens or more behind a block's first are left out: where a block's hash looks
    ahead its keys do, too (vLLM 0.33), and they are the next one's.
    """
    if not isinstance(value, list):
        raise CodecError(f"engine event: extra keys are {text_of(value)}, not a list")
    keys = cast("list[object]", value)
    if len(keys) != blocks:
        return None, (keys_digest(keys),) * blocks if keys else ()
    salt: str | None = None
    digests: list[int] = []
    for position, key in enumerate(keys):
        rest = [one for one in _without_lora(key, lora) if not _begins_behind(one, within)]
        if first and position == 0:
            texts = [item for item in rest if isinstance(item, str)]
            if len(texts) == 1:
                salt = texts[0]
                rest = [item for item in rest if item is not salt]
        digests.append(keys_digest(rest) if rest else 0)
    return salt, tuple(digests) if any(digests) else ()


def _without_lora(key: object, lora: str | None) -> Sequence[object]:
    if key is None:
        return ()
    items = cast("list[object]", key) if isinstance(key, list) else [key]
    return items[1:] if items and items[0] == lora and lora is not None else items


def _begins_behind(key: object, within: float) -> bool:
    pair = as_list(key)
    place = pair[1] if pair is not None and len(pair) == _PAIR else None
    return isinstance(place, int) and place >= within


def keys_digest(value: Sequence[object]) -> int:
    """Return what stands for a block's keys: a u64, never 0, the same in every process.

    Of media they are (name, first token's place in the block) pairs.
    """
    return xxhash.xxh3_64_intdigest(_encoder.encode(value)) or 1
