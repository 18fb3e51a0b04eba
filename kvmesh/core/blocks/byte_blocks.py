"""Blocks of a prompt's bytes, for routing by what was sent when its token ids are not known."""

from typing import Final

from kvmesh.core.blocks.hashing import TOKEN_BYTES, BlockHashes, extend_hash

BYTES_A_TOKEN: Final = 4
"""What a token is taken for: near the mean of English text and code."""

_OF_BYTES: Final = int.from_bytes(b"by bytes", "little")


def byte_blocks(prompt: bytes, block_size: int, root: int) -> BlockHashes:
    """Return hashes of the prompt's bytes, four counted as a token, in a namespace of their own.

    They never meet hashes of token ids, so that events and routed prompts stay apart.
    """
    whole = len(prompt) // TOKEN_BYTES * TOKEN_BYTES
    return BlockHashes(prompt[:whole], block_size, extend_hash(root, _OF_BYTES))
