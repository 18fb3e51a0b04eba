import pytest

from kvmesh.core.blocks.hash_chain import AHEAD, chain_tokens
from kvmesh.errors import RequestError


def test_what_is_no_token_is_refused() -> None:
    with pytest.raises(RequestError, match=r"tokens 1\.\.1: token ids are integers"):
        chain_tokens(5, (0, -1), 1, 1, 1)
    with pytest.raises(RequestError, match=rf"tokens {AHEAD}\.\.{2 * AHEAD - 1}: token ids"):
        chain_tokens(5, [0] * 100 + [-1] * 100, 0, 1, 200)
