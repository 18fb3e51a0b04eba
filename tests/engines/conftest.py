from pathlib import Path

import pytest

from tests.engines.tiny_model import write_tiny_model
from tests.engines.vllm_venv import venv_directory, vllm_python, why_not_built


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of the environment with vLLM."""
    if "engines" not in request.config.getoption("-m"):
        pytest.skip("takes minutes: make test-engines")
    interpreter = vllm_python(venv_directory())
    if interpreter is None:
        pytest.skip(why_not_built(venv_directory()))
    return interpreter


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
