import pytest


@pytest.fixture(autouse=True, scope="session")
def wanted(request: pytest.FixtureRequest) -> None:
    """Skip unless asked for: it takes minutes."""
    if "clients" not in str(request.config.getoption("-m")):
        pytest.skip("takes minutes: make test-clients")
