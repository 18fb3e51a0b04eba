"""Hashing blocks, each seeded with the hash before it: compiled, or without byte code in between.

`chain`, `pack_chain` and `chain_tokens` are the compiled ones where there are any; the pure ones
give the same numbers and errors.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from xxhash import xxh3_64_intdigest

from kvmesh.compiled import NATIVE
from kvmesh.errors import RequestError

AHEAD: Final = 64
"""Blocks hashed in one go, more than asked for: it spreads the cost of the calls."""

SPLIT_BLOCKS: Final = 512
"""Blocks cut out of a buffer at once."""

Chain = Callable[[int, bytes | memoryview, int, int, int], list[int]]
PackChain = Callable[[int, bytes | memoryview | str, int, int, int], bytes]
ChainTokens = Callable[[int, Sequence[int], int, int, int], bytes]
PackU64s = Callable[[Sequence[int]], bytes | Sequence[int]]
QuickChain = Callable[[int, Sequence[int], int, int, int], bytes | None]


def hash_chain(seed: int, blocks: Sequence[bytes]) -> list[int]:
    """Return the hash of each block, seeded with the hash of the block before it, or `seed`.

    The list feeds itself: what was just appended is the next seed that `map` asks for. That takes a
    quarter off a short run, 15 % off a long one.
    """
    chain = [seed]
    chain.extend(map(xxh3_64_intdigest, blocks, chain))
    del chain[0]
    return chain


def pure_chain(
    seed: int, packed: bytes | memoryview, start: int, width: int, count: int
) -> list[int]:
    """Return the hashes of `count` packed blocks of `width` bytes, from byte `start` on."""
    if count <= SPLIT_BLOCKS:
        return hash_chain(seed, _splitter(width, count)(packed, start))
    hashes: list[int] = []
    for done in range(0, count, SPLIT_BLOCKS):
        blocks = _splitter(width, min(count - done, SPLIT_BLOCKS))(packed, start + done * width)
        hashes += hash_chain(hashes[-1] if hashes else seed, blocks)
    return hashes


def pure_chain_tokens(seed: int, tokens: Sequence[int], first: int, size: int, count: int) -> bytes:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    Raises `RequestError` for a token that is no u32.
    """
    hashes: list[int] = []
    for done in range(0, count, AHEAD):
        few, place = min(count - done, AHEAD), first + done * size
        packed = pack_u32s(tokens[place : place + few * size], place)
        hashes += hash_chain(hashes[-1] if hashes else seed, _splitter(size * 4, few)(packed, 0))
    return array("Q", hashes).tobytes()


def pure_pack_chain(
    seed: int, tokens: bytes | memoryview | str, first: int, size: int, count: int
) -> bytes:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    `tokens` are a buffer of u32s, or a string: its code points.
    """
    if isinstance(tokens, str):
        text = tokens[first : first + size * count]
        tokens, first = text.encode("utf-32-le", "surrogatepass"), 0
    return array("Q", pure_chain(seed, tokens, first * 4, size * 4, count)).tobytes()


def pack_u32s(tokens: Sequence[int], position: int) -> bytes:
    """Return tokens as little-endian u32s. Raises `RequestError`; `position` is the first one's."""
    try:
        return _packer(len(tokens))(*tokens)
    except struct.error as error:
        place = f"tokens {position}..{position + len(tokens) - 1}"
        raise RequestError(f"{place}: token ids are integers from 0 to 2^32-1") from error


def compiled_pack_u64s(quick: Callable[[Sequence[int]], bytes | None]) -> PackU64s:
    """Return what has a short cut for lists and tuples of u64s, and returns the rest as it is."""

    def pack_u64s(hashes: Sequence[int]) -> bytes | Sequence[int]:
        known = quick(hashes)
        return hashes if known is None else known

    return pack_u64s


def compiled_chain_tokens(quick: QuickChain) -> ChainTokens:
    """Return `pure_chain_tokens` with a short cut for lists and tuples of what is a token."""

    def chain_tokens(seed: int, tokens: Sequence[int], first: int, size: int, count: int) -> bytes:
        known = quick(seed, tokens, first, size, count)
        return pure_chain_tokens(seed, tokens, first, size, count) if known is None else known

    return chain_tokens


@lru_cache(maxsize=1024)
def _splitter(width: int, count: int) -> Callable[[bytes | memoryview, int], tuple[bytes, ...]]:
    """Return what cuts `count` blocks of `width` bytes out of a buffer, from a byte on."""
    return struct.Struct(f"{width}s" * count).unpack_from


@lru_cache(maxsize=1024)
def _packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}I").pack


chain: Final[Chain] = NATIVE.chain if NATIVE else pure_chain
pack_chain: Final[PackChain] = NATIVE.pack_chain if NATIVE else pure_pack_chain
chain_tokens: Final[ChainTokens] = (
    compiled_chain_tokens(NATIVE.chain_tokens) if NATIVE else pure_chain_tokens
)


def _as_they_are(hashes: Sequence[int]) -> Sequence[int]:
    return hashes


pack_u64s: Final[PackU64s] = compiled_pack_u64s(NATIVE.pack_u64s) if NATIVE else _as_they_are
"""Return what makes an array of u64s: hashes packed, where that is quicker, or as they are."""
