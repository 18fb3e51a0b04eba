from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.engine_venv import NIXL, SGLANG, VLLM, EngineVenv
from tests.engines.reuse.report import Report
from tests.engines.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with vLLM."""
    return interpreter(request, VLLM)


@pytest.fixture(scope="session")
def sglang(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with SGLang."""
    return interpreter(request, SGLANG)


@pytest.fixture(scope="session")
def nixl(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with vLLM and NIXL."""
    return interpreter(request, NIXL)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    """What is measured, printed when all engines have run."""
    made = Report()
    yield made
    made.keep()
    print(made.text())  # noqa: T201 - the report is the point


def interpreter(request: pytest.FixtureRequest, venv: EngineVenv) -> Path:
    if "engines" not in request.config.getoption("-m"):
        pytest.skip("takes minutes: make test-engines")
    python = venv.python()
    if python is None:
        pytest.skip(venv.why_not_built())
    return python
