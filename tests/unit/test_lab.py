import importlib.util
import subprocess
import sys

import pytest

from kvmesh.app.ops.up import command as run_up
from kvmesh.cli import OF_LAB, prepare
from kvmesh.errors import ConfigError
from kvmesh.lab import PACKAGE, require_lab
from kvmesh.settings.roles import UpSettings

WITHOUT = """
import sys
sys.modules[{package!r}] = None  # the form that makes an import fail
sys.argv = ["kvmesh", *{words!r}]
from kvmesh.cli import main
main()
"""


def run_without(*words: str) -> tuple[int, str, str]:
    """Run the command line in a process that has no kvmesh-lab."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(package=PACKAGE, words=words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def without_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)


def test_what_needs_the_laboratory_is_let_pass_where_it_is_installed() -> None:
    require_lab("this")

    assert importlib.util.find_spec(PACKAGE) is not None


@pytest.mark.usefixtures("without_lab")
def test_what_needs_a_missing_laboratory_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"^this needs kvmesh-lab, .*: pip install kvmesh-lab$"):
        require_lab("this")


@pytest.mark.usefixtures("without_lab")
def test_a_mesh_of_simulated_engines_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match=r"`kvmesh up` .*: pip install kvmesh-lab"):
        run_up(UpSettings(), prepare)


@pytest.mark.parametrize("words", [(), ("--help",), ("trace.jsonl", "--seed", "1")])
@pytest.mark.parametrize("name", ["simulate", "mocker"])
def test_a_command_that_is_not_installed_says_what_to_install(
    name: str, words: tuple[str, ...]
) -> None:
    code, out, err = run_without(name, *words)

    reported = f"kvmesh: `kvmesh {name}` needs kvmesh-lab, which is not installed"
    assert (code, out, err) == (2, "", f"{reported}: pip install kvmesh-lab\n")


def test_help_without_the_laboratory_names_it_below_the_commands_that_are_there() -> None:
    code, out, _ = run_without("--help")

    assert code == 0
    assert " router " in out
    assert not any(f"│ {name} " in out for name in OF_LAB)
    assert f"pip install kvmesh-lab: {', '.join(sorted(OF_LAB))}" in out


def test_completion_works_without_the_laboratory() -> None:
    code, out, err = run_without("completion", "bash")

    assert (code, err) == (0, "")
    assert "meta-router" in out


def test_the_settings_of_a_simulated_engine_are_those_of_the_laboratory() -> None:
    code, out, err = run_without("config", "mocker")

    reported = "kvmesh: `kvmesh config mocker` needs kvmesh-lab, which is not installed"
    assert (code, out, err) == (2, "", f"{reported}: pip install kvmesh-lab\n")
    code, out, err = run_without("config", "all")
    assert (code, err) == (0, "")
    assert "num-gpu-blocks-override" not in out
