"""Hashing blocks, each seeded with the hash before it, whatever sequence the tokens come in.

The compiled core takes lists and tuples of plain integers. Other sequences, and integers of other
types, are packed here first; what is no token is refused here.
"""

import struct
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from kvmesh._native import chain_tokens as chain_plain_tokens
from kvmesh._native import pack_chain
from kvmesh._native import pack_u64s as pack_plain_u64s
from kvmesh.errors import RequestError

AHEAD: Final = 64
"""Blocks hashed in one go, more than asked for: it spreads the cost of the calls."""


def chain_tokens(seed: int, tokens: Sequence[int], first: int, size: int, count: int) -> bytes:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    Raises `RequestError` for a token that is no u32.
    """
    known = chain_plain_tokens(seed, tokens, first, size, count)
    if known is not None:
        return known
    hashes = b""
    for done in range(0, count, AHEAD):
        few, place = min(count - done, AHEAD), first + done * size
        packed = pack_u32s(tokens[place : place + few * size], place)
        hashes += pack_chain(seed, packed, 0, size, few)
        seed = int.from_bytes(hashes[-8:], sys.byteorder)
    return hashes


def pack_u32s(tokens: Sequence[int], position: int) -> bytes:
    """Return tokens as little-endian u32s. Raises `RequestError`; `position` is the first one's."""
    try:
        return _packer(len(tokens))(*tokens)
    except struct.error as error:
        place = f"tokens {position}..{position + len(tokens) - 1}"
        raise RequestError(f"{place}: token ids are integers from 0 to 2^32-1") from error


def pack_u64s(hashes: Sequence[int]) -> bytes | Sequence[int]:
    """Return what makes an array of u64s: hashes packed, where that is quicker, or as they are."""
    known = pack_plain_u64s(hashes)
    return hashes if known is None else known


@lru_cache(maxsize=1024)
def _packer(count: int) -> Callable[..., bytes]:
    return struct.Struct(f"<{count}I").pack
