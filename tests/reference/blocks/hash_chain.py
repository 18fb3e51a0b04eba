"""The naive model of kvmesh/native/prompts/hashing.c, by the xxhash wheel."""

import struct
from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.hash_chain import AHEAD
from kvmesh.errors import RequestError


def chain(seed: int, packed: bytes, start: int, width: int, count: int) -> list[int]:
    """Return the hashes of `count` blocks of `width` bytes, each seeded with the one before."""
    hashes = [seed]
    for at in range(start, start + count * width, width):
        hashes.append(xxh3_64_intdigest(packed[at : at + width], hashes[-1]))
    return hashes[1:]


def chain_tokens(seed: int, tokens: Sequence[int], first: int, size: int, count: int) -> bytes:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    Raises `RequestError` for a token that is no u32: it tells which `AHEAD` blocks have it.
    """
    packed = b""
    for place in range(first, first + count * size, AHEAD * size):
        some = tokens[place : min(place + AHEAD * size, first + count * size)]
        try:
            packed += struct.pack(f"<{len(some)}I", *some)
        except struct.error as error:
            where = f"tokens {place}..{place + len(some) - 1}"
            raise RequestError(f"{where}: token ids are integers from 0 to 2^32-1") from error
    return array("Q", chain(seed, packed, 0, size * 4, count)).tobytes()


def pack_chain(seed: int, tokens: bytes | str, first: int, size: int, count: int) -> bytes:
    """Return the same of a buffer of u32s, or of a string's code points."""
    if isinstance(tokens, str):
        tokens = tokens.encode("utf-32-le", "surrogatepass")
    return array("Q", chain(seed, tokens, first * 4, size * 4, count)).tobytes()
