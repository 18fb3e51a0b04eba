import os
import subprocess
import sys

import pytest

from kvmesh import compiled
from kvmesh.compiled import CORE, NATIVE, VERSION, find_native


def test_the_compiled_core_is_used_where_there_is_one() -> None:
    if os.environ.get(compiled.VARIABLE):
        pytest.skip("the environment forbids it")
    assert find_native("") == (NATIVE, CORE)
    assert CORE == "native" if NATIVE else CORE.startswith("pure (")


def test_a_wish_for_the_pure_core_is_granted_and_told() -> None:
    assert find_native("pure") == (None, "pure (KVMESH_CORE=pure)")


def test_a_core_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if NATIVE is None:
        pytest.skip(CORE)
    monkeypatch.setattr(compiled, "VERSION", 0)

    assert find_native("") == (None, f"pure (native is {VERSION}, not 0: `pip install` it again)")


def test_without_a_compiled_core_the_pure_one_says_why() -> None:
    program = (
        "import sys; sys.modules['kvmesh._native'] = None\n"
        "from kvmesh.compiled import CORE\n"
        "print(CORE)"
    )

    told = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout

    assert told.startswith("pure (import of kvmesh._native halted; ") or "KVMESH_CORE" in told
