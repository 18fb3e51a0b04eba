import pytest

from kvmesh._native import VERSION
from kvmesh.core import NEEDED, check_version


def test_a_core_of_another_version_is_refused() -> None:
    check_version(VERSION)

    with pytest.raises(ImportError, match=rf"the compiled core is {NEEDED + 1}, .*needs {NEEDED}"):
        check_version(NEEDED + 1)
