"""Prompts of token ids whose block hashes are any u64s that somebody wants: XXH3-64, inverted.

A block of 16 ids is 64 bytes, of which XXH3 makes four products of two halves each (its way for 33
to 128 bytes). With the seed known, one half is chosen so that its factor is a power of two; the
other then follows from the sum that is wanted, for the mixing behind it can be undone. Ids stay
below 2^31.
"""

import struct
from collections.abc import Iterable
from random import Random
from typing import Final

MASK: Final = (1 << 64) - 1
SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
PRIME: Final = 0x9E3779B185EBCA87
AVALANCHE: Final = 0x165667919E3779F9
SIGNS: Final = 0x8000000080000000
PAIRS: Final = ((2, 3, 32), (4, 5, 48), (0, 1, 0), (6, 7, 16))
"""Two words of a block, and where the secret for them begins."""

SHIFTS: Final = (0, 1, 31, 32, 63)


def _secret(at: int) -> int:
    return int(struct.unpack_from("<Q", SECRET, at)[0])


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) & MASK


def _masks(seed: int, at: int) -> tuple[int, int]:
    return _secret(at) + seed & MASK, _secret(at + 8) - seed & MASK


def _sum_for(hashed: int) -> int:
    """Undo the last mixing."""
    hashed ^= hashed >> 32
    hashed = hashed * pow(AVALANCHE, -1, 1 << 64) & MASK
    return hashed ^ hashed >> 37


def block_of(seed: int, hashed: int, draw: Random) -> list[int]:
    """Return 16 token ids that are hashed to `hashed` behind a block of the hash `seed`."""
    for low, high, at in PAIRS:
        own, other = _masks(seed, at)
        for shift in SHIFTS:
            factor = 1 << shift ^ own
            if factor & SIGNS:
                continue
            for _ in range(64):
                words = [draw.getrandbits(64) & ~SIGNS for _ in range(8)]
                rest = 64 * PRIME
                for one, two, begin in PAIRS:
                    if one != low:
                        first, second = _masks(seed, begin)
                        rest += _fold(words[one] ^ first, words[two] ^ second)
                wanted = _sum_for(hashed) - rest & MASK
                turned = (wanted >> shift | wanted << 64 - shift) & MASK
                words[low], words[high] = factor, turned ^ other
                if not words[high] & SIGNS:
                    return list(struct.unpack("<16I", struct.pack("<8Q", *words)))
    return []


def prompt_of(hashes: Iterable[int], draw: Random, seed: int = 0) -> list[int]:
    """Return a prompt whose blocks have these hashes; those that cannot be reached are left out."""
    ids: list[int] = []
    for hashed in hashes:
        block = block_of(seed, hashed, draw)
        if block:
            ids += block
            seed = hashed
    return ids
