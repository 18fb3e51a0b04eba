import pytest

from kvmesh.compiled import CORE, NATIVE
from kvmesh.core.blocks.hash_chain import compiled_chain_tokens, pure_chain, pure_chain_tokens
from kvmesh.core.index.table import BlockTable


@pytest.fixture(params=["pure", "native"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the pure core, and with the compiled one where there is one."""
    quick = NATIVE if request.param == "native" else None
    if request.param == "native" and quick is None:
        pytest.skip(CORE)
    monkeypatch.setattr(
        "kvmesh.core.index.implementation.TABLE", quick.Table if quick else BlockTable
    )
    chain_tokens = compiled_chain_tokens(quick.chain_tokens) if quick else pure_chain_tokens
    monkeypatch.setattr("kvmesh.core.blocks.hashing.chain", quick.chain if quick else pure_chain)
    monkeypatch.setattr("kvmesh.core.blocks.hashing.chain_tokens", chain_tokens)
    monkeypatch.setattr("kvmesh.core.overlap.approx.NATIVE", quick)
