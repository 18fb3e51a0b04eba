"""Single fields of engine events, each checked once: a wrong type is a `CodecError`, never more."""

from array import array
from collections.abc import Sequence, Sized
from typing import Final, cast

import msgspec
import xxhash

from kvmesh.bounds import MAX_TEXT, MAX_TOKENS, shown
from kvmesh.errors import CodecError

_MASK: Final = (1 << 64) - 1
_encoder = msgspec.msgpack.Encoder()


def told(value: object) -> str:
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
    raise CodecError(f"engine event: {name} is {told(value)}, not text")


def optional_text(value: object, name: str) -> str | None:
    """Return `value` as text, or None."""
    return None if value is None else text(value, name)


def non_negative(value: object, name: str) -> int:
    """Return `value` as a number from 0 to `MAX_TOKENS`."""
    if isinstance(value, int) and 0 <= value <= MAX_TOKENS:
        return int(value)
    raise CodecError(f"engine event: {name} is {told(value)}, not a number >= 0 that can be")


def block_hash(value: object) -> int:
    """Return an engine's block hash as unsigned 64-bit; bytes count by their last eight.

    The same digest sent as int, its low 64 bits, or as bytes gives the same value.
    """
    if isinstance(value, int):
        return value & _MASK
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise CodecError(f"engine event: a block hash is {told(value)}, not a number or bytes")


def block_hashes(value: object) -> tuple[int, ...]:
    """Return a list of block hashes."""
    if not isinstance(value, list):
        raise CodecError(f"engine event: block_hashes is {told(value)}, not a list")
    return tuple(map(block_hash, cast("list[object]", value)))


def tokens(value: object) -> bytes:
    """Return token ids as u32 little-endian.

    Bigram mode (EAGLE) sends pairs `(token, next token)`; the first of each is the token.
    """
    if not isinstance(value, list):
        raise CodecError(f"engine event: token_ids is {told(value)}, not a list")
    ids = cast("list[object]", value)
    if ids and isinstance(ids[0], list):
        ids = [_first(pair) for pair in ids]
    try:
        packed = array("I", cast("list[int]", ids))
    except (TypeError, OverflowError) as error:
        raise CodecError(f"engine event: token_ids holds no u32 token id: {error}") from error
    return packed.tobytes()


def _first(pair: object) -> object:
    items = as_list(pair)
    if not items:
        raise CodecError(f"engine event: token_ids mixes pairs and {told(pair)}")
    return items[0]


def extras(
    value: object, blocks: int, *, lora: str | None, first: bool
) -> tuple[str | None, tuple[int, ...]]:
    """Return (cache salt, one digest a block) of untagged `extra_keys`.

    A block's keys are the adapter's name, (image, offset) pairs, the cache salt (only the `first`
    block of a sequence) and digests of prompt embeddings, in this order and without labels. A first
    block's only remaining text is taken as the salt; everything else stays opaque, so that two
    sequences that differ in it never share a content hash. Digest 0 stands for nothing.
    """
    if not isinstance(value, list):
        raise CodecError(f"engine event: extra keys are {told(value)}, not a list")
    keys = cast("list[object]", value)
    if len(keys) != blocks:
        return None, (_digest(keys),) * blocks if keys else ()
    salt: str | None = None
    digests: list[int] = []
    for position, key in enumerate(keys):
        rest = _without_lora(key, lora)
        if first and position == 0:
            texts = [item for item in rest if isinstance(item, str)]
            if len(texts) == 1:
                salt = texts[0]
                rest = [item for item in rest if item is not salt]
        digests.append(_digest(rest) if rest else 0)
    return salt, tuple(digests) if any(digests) else ()


def _without_lora(key: object, lora: str | None) -> Sequence[object]:
    if key is None:
        return ()
    items = cast("list[object]", key) if isinstance(key, list) else [key]
    return items[1:] if items and items[0] == lora and lora is not None else items


def _digest(value: Sequence[object]) -> int:
    """Return a digest that is never 0; equal content gives equal digests in every process."""
    return xxhash.xxh3_64_intdigest(_encoder.encode(value)) or 1
