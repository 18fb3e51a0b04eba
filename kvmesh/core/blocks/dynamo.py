"""NVIDIA Dynamo's block hashes, bit for bit, for meshes that share hashes with Dynamo.

A local hash names a block's own content: XXH3-64 of its tokens as little-endian u32, then of its
multimodal objects' hashes, ascending, as little-endian u64. The seed names adapter and namespace.
A sequence hash names the block with everything before it: the first is the local hash, each
further one is XXH3-64 of the previous sequence hash and the local hash, both little-endian u64,
with seed 1337.

Source: ai-dynamo-runtime 1.6.1, `compute_block_hash_for_seq` (golden vectors in the tests);
lib/kv-router/README.md, "The Four Block Identifiers", for the chain.
"""

import struct
from collections.abc import Sequence
from typing import Final

from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.hashing import TOKEN_BYTES, Tokens, pack_tokens

SEED: Final = 1337
_U64: Final = (1 << 64) - 1
_chain = struct.Struct("<QQ").pack


def dynamo_seed(lora: str = "", namespace: str = "") -> int:
    """Return the seed of local hashes under an adapter and a cache namespace ("" for none)."""
    seed = SEED
    if lora:
        seed += xxh3_64_intdigest(lora.encode())
    if namespace:
        seed += xxh3_64_intdigest(namespace.encode(), 1)
    return seed & _U64


def dynamo_local_hashes(
    tokens: Tokens,
    block_size: int,
    *,
    seed: int = SEED,
    objects: Sequence[Sequence[int] | None] = (),
    eagle: bool = False,
) -> list[int]:
    """Return the local hash of every full block of `tokens`.

    `objects` has, per block, the u64 hashes of the images and the like that lie in it. With
    `eagle` a block also covers the first token of the next one, so the last full block needs one
    token more. Raises `RequestError` for a token that is no u32. O(tokens).
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, it must be at least 1")
    data = bytes(pack_tokens(tokens))
    stride = block_size * TOKEN_BYTES
    width = stride + TOKEN_BYTES if eagle else stride
    starts = range(0, len(data) - width + 1, stride)
    if not objects:
        return [xxh3_64_intdigest(data[start : start + width], seed) for start in starts]
    hashes: list[int] = []
    for number, start in enumerate(starts):
        inside = (objects[number] if number < len(objects) else None) or ()
        block = data[start : start + width] + struct.pack(f"<{len(inside)}Q", *sorted(inside))
        hashes.append(xxh3_64_intdigest(block, seed))
    return hashes


def dynamo_sequence_hashes(local_hashes: Sequence[int]) -> list[int]:
    """Return the sequence hash of every block, root first, from the blocks' local hashes."""
    hashes = list(local_hashes)
    for number in range(1, len(hashes)):
        hashes[number] = xxh3_64_intdigest(_chain(hashes[number - 1], hashes[number]), SEED)
    return hashes
