from collections.abc import Sequence

import pytest

from kvmesh.core.blocks.hash_chain import (
    SPLIT_BLOCKS,
    compiled_chain_tokens,
    hash_chain,
    pure_chain,
    pure_chain_tokens,
)
from kvmesh.errors import RequestError


def choosy(seed: int, tokens: Sequence[int], first: int, size: int, count: int) -> bytes | None:
    return bytes([seed + first] * (count * size)) if isinstance(tokens, list) else None


def test_a_long_buffer_is_cut_into_pieces_that_hash_as_one() -> None:
    packed = bytes(range(256)) * 20
    blocks = [packed[at : at + 4] for at in range(12, 12 + 4 * (SPLIT_BLOCKS + 7), 4)]

    assert pure_chain(9, packed, 12, 4, SPLIT_BLOCKS + 7) == hash_chain(9, blocks)
    assert pure_chain(9, packed, 12, 4, 0) == []


def test_what_the_compiled_core_does_not_take_is_hashed_by_the_pure_one() -> None:
    chain_tokens = compiled_chain_tokens(choosy)

    assert chain_tokens(5, [1, 2], 0, 1, 2) == b"\5\5"
    assert chain_tokens(5, range(2), 0, 1, 2) == pure_chain_tokens(5, [0, 1], 0, 1, 2)
    with pytest.raises(RequestError, match=r"tokens 1\.\.1: token ids are integers"):
        chain_tokens(5, (0, -1), 1, 1, 1)
