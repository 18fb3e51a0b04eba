"""The two clients have the same methods with the same arguments."""

import inspect
import subprocess
import sys

import pytest

from kvmesh.client import AsyncClient, AsyncStream, Client, Stream


def signatures(shell: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return every public method's parameters: name, kind and default."""
    return {
        name: [
            (one.name, one.kind, one.default)
            for one in inspect.signature(method).parameters.values()
        ]
        for name, method in vars(shell).items()
        if callable(method) and (name == "__init__" or not name.startswith("_"))
    }


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Stream, AsyncStream)])
def test_both_shells_are_called_alike(one: type, other: type) -> None:
    assert signatures(one) == signatures(other)
    assert signatures(one)


def test_without_httpx_the_remedy_is_named() -> None:
    program = "import sys; sys.modules['httpx'] = None\nfrom kvmesh import Client"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "pip install 'kvmesh[client]'" in done.stderr.splitlines()[-1]
