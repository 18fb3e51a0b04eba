from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.engine_venv import SGLANG, VLLM, EngineVenv
from tests.engines.tiny_model import write_tiny_model

HEADER = """
| engine | run | requests | exact | too much | too little | tokens reused | with reuse |
|---|---|---|---|---|---|---|---|"""


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with vLLM."""
    return interpreter(request, VLLM)


@pytest.fixture(scope="session")
def sglang(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with SGLang."""
    return interpreter(request, SGLANG)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def report() -> Iterator[list[str]]:
    """The rows of one table, printed when all engines have run."""
    rows: list[str] = []
    yield rows
    print("\n".join([HEADER, *rows]))  # noqa: T201 - the report is the point


def interpreter(request: pytest.FixtureRequest, venv: EngineVenv) -> Path:
    if "engines" not in request.config.getoption("-m"):
        pytest.skip("takes minutes: make test-engines")
    python = venv.python()
    if python is None:
        pytest.skip(venv.why_not_built())
    return python
