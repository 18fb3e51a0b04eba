import importlib.util

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.conformance.command import is_installed, try_picker_command


def test_without_the_extra_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"pip install 'kvmesh-lab\[conformance\]'"):
        try_picker_command()


def test_a_package_in_a_namespace_that_is_not_there_is_not_installed() -> None:
    assert not is_installed("no_such_namespace.package")
    assert is_installed("google.protobuf")
