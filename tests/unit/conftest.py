import pytest

from kvmesh.compiled import CORE, NATIVE


@pytest.fixture(params=["pure", "native"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the pure core, and with the compiled one where there is one."""
    quick = NATIVE if request.param == "native" else None
    if request.param == "native" and quick is None:
        pytest.skip(CORE)
    monkeypatch.setattr("kvmesh.core.overlap.approx.NATIVE", quick)
