"""A machine without a C compiler is given one for the build."""

import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "deploy/build_backend/backend.py"


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    pytest.importorskip("setuptools", reason="it wraps setuptools, which builds bring along")
    spec = spec_from_file_location("backend", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_zig_is_asked_for_where_no_compiler_is(
    backend: ModuleType, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "one"\nversion = "1"\n')
    monkeypatch.delenv("CC", raising=False)
    required = getattr(backend, f"get_requires_for_build_{kind}")

    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: f"{sys.executable} -pthread")
    with_one = required()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: "no-such-compiler -pthread")

    assert required() == [*with_one, backend.ZIG]
    monkeypatch.setenv("CC", sys.executable)
    assert required() == with_one
