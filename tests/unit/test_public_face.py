"""`from kvmesh import …`: quick, complete, typed, and without what a library does not need."""

import inspect
import subprocess
import sys

import pytest

import kvmesh


def run(program: str) -> list[str]:
    """Return what a program prints, in words."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def test_the_package_itself_loads_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import kvmesh; print(*set(sys.modules) - before)"
    )

    assert run(program) == ["kvmesh"]


def test_the_library_needs_no_nats_no_http_and_no_event_loop() -> None:
    unwanted = ["nats", "faststream", "httpx", "httptools", "zmq", "uvloop", "asyncio", "structlog"]
    program = (
        "import sys\n"
        "from kvmesh import ApproxKvIndexer, KvIndexer, KvMetricsAggregator, KvRouter\n"
        f"print(*[name for name in {unwanted} if name in sys.modules])"
    )

    assert run(program) == []


def test_a_client_needs_no_library_and_an_error_neither() -> None:
    program = (
        "import sys\n"
        "from kvmesh import AsyncClient, Client, NoWorkerError\n"
        "print(*[name for name in sys.modules if name.startswith(('kvmesh.library', 'nats'))])"
    )

    assert run(program) == []


def test_the_command_line_loads_no_part_of_the_face() -> None:
    program = "import sys, kvmesh.cli; print(*(n for n in sys.modules if n.startswith('kvmesh.')))"

    assert {*run(program)} <= {
        *("kvmesh.cli", "kvmesh.errors", "kvmesh.lab", "kvmesh._native"),
        *("kvmesh.settings", "kvmesh.settings.spellings"),
    }


@pytest.mark.parametrize("name", kvmesh.__all__)
def test_every_public_name_is_there_and_is_kept(name: str) -> None:
    value = getattr(kvmesh, name)

    assert vars(kvmesh)[name] is value
    assert name in dir(kvmesh)


def test_names_are_sorted_and_those_of_the_rooms_behind_are_all_public() -> None:
    from kvmesh import library  # noqa: PLC0415 - after the tests of what is loaded

    assert len(set(kvmesh.__all__)) == len(kvmesh.__all__)
    assert set(library.__all__) <= set(kvmesh.__all__)


def test_another_name_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'kvmesh' has no attribute 'KvRooter'"):
        kvmesh.KvRooter  # type: ignore[attr-defined]  # noqa: B018 - it is to fail


def test_a_type_checker_knows_every_name() -> None:
    """The block that type checkers read names what `__all__` does."""
    source = inspect.getsource(kvmesh)
    block = source.partition("if TYPE_CHECKING:")[2].partition("__all__")[0]

    for name in kvmesh.__all__:
        assert name in block.replace(",", " ").split()
