from enum import IntEnum

import pytest

from kvmesh.core.blocks.hash_chain import AHEAD, chain_tokens, pack_u64s
from kvmesh.errors import RequestError
from tests.reference.blocks import hash_chain


class Token(IntEnum):
    ONE = 1


@pytest.mark.parametrize("tokens", [range(4 * AHEAD), [Token.ONE] * (4 * AHEAD), [True] * 400])
def test_what_the_compiled_core_does_not_take_is_packed_first(
    tokens: range | list[Token] | list[bool],
) -> None:
    count = 2 * AHEAD - 1

    found = chain_tokens(5, tokens, 1, 2, count)

    assert found == hash_chain.chain_tokens(5, list(map(int, tokens)), 1, 2, count)


def test_what_is_no_token_is_refused() -> None:
    with pytest.raises(RequestError, match=r"tokens 1\.\.1: token ids are integers"):
        chain_tokens(5, (0, -1), 1, 1, 1)
    with pytest.raises(RequestError, match=rf"tokens {AHEAD}\.\.{2 * AHEAD - 1}: token ids"):
        chain_tokens(5, [0] * 100 + [-1] * 100, 0, 1, 200)


def test_hashes_are_packed_where_that_is_quicker() -> None:
    assert pack_u64s([1, 2]) == pack_u64s((1, 2)) == bytes([1, *bytes(7), 2, *bytes(7)])
    assert pack_u64s(range(2)) == range(2)
