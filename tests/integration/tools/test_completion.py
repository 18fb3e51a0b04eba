"""Completion of `kvmesh` in the shells that this machine has."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvmesh.cli import COMMANDS
from kvmesh.completion import find_shell
from kvmesh.errors import ConfigError

pytestmark = pytest.mark.integration

SHELLS = ("bash", "zsh", "fish")

ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvmesh; printf '%s\\n' "${COMPREPLY[@]}"
"""
ASK_FISH = "source {script}; complete -C '{line}'"
ZSHRC = "fpath+=({folder}); autoload -Uz compinit; compinit -u -D; PROMPT='here> '\n"

LINES = {
    "kvmesh ro": {"router"},
    "kvmesh router --http-": {"--http-host", "--http-port"},
    "kvmesh router --router-mode ": {"kv", "round-robin", "direct"},
    "kvmesh snapshot ": {"list", "inspect", "verify", "take"},
}


def run(*line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvmesh", *line],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | variables,
    )


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a script for each shell that is here, as the command prints it."""
    folder = tmp_path_factory.mktemp("completion")
    found: dict[str, Path] = {}
    for shell in SHELLS:
        if shutil.which(shell):
            done = run("completion", shell)
            assert done.returncode == 0, done.stderr
            found[shell] = folder / f"kvmesh.{shell}"
            found[shell].write_text(done.stdout)
    return found


def offers(shell: str, script: Path, line: str) -> set[str]:
    words = line.split(" ")
    asked = (
        [shell, "-c", ASK_BASH, shell, str(script), *words]
        if shell == "bash"
        else [shell, "-N", "-c", ASK_FISH.format(script=script, line=line)]
    )
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    return {one.split("\t")[0] for one in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_flags_and_values_are_completed(shell: str, scripts: dict[str, Path]) -> None:
    if shell not in scripts:
        pytest.skip(f"no {shell} here")

    for line, expected in LINES.items():
        assert offers(shell, scripts[shell], line) >= expected, line
    assert offers(shell, scripts[shell], "kvmesh ") >= set(COMMANDS)


def read_until(terminal: int, *words: str) -> None:
    shown, deadline = "", time.monotonic() + 30
    while not all(word in shown for word in words):
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")


@pytest.mark.parametrize("way", ["found", "sourced"])
def test_zsh_completes_at_its_prompt(way: str, scripts: dict[str, Path], tmp_path: Path) -> None:
    if "zsh" not in scripts:
        pytest.skip("no zsh here")
    shutil.copy(scripts["zsh"], tmp_path / ("_kvmesh" if way == "found" else "script"))
    source = f"source {tmp_path}/script\n" if way == "sourced" else ""
    (tmp_path / ".zshrc").write_text(ZSHRC.format(folder=tmp_path) + source)
    child, terminal = pty.fork()
    if not child:
        variables = os.environ | {"ZDOTDIR": str(tmp_path), "TERM": "dumb"}
        os.execvpe("zsh", ["zsh", "-i"], variables)  # noqa: S606  a terminal of its own
    try:
        read_until(terminal, "here> ")
        os.write(terminal, b"kvmesh router --http-\t\t")
        read_until(terminal, "--http-host", "--http-port")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)


def test_the_script_is_installed_where_the_shell_looks_for_it(tmp_path: Path) -> None:
    done = run("completion", "--install", HOME=str(tmp_path), SHELL="/bin/bash")

    path = tmp_path / ".local/share/bash-completion/completions/kvmesh"
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout.replace("\n", "")
    assert "complete -F _kvmesh kvmesh" in path.read_text()


def test_a_shell_that_is_none_of_them_is_named() -> None:
    assert find_shell("/usr/bin/zsh") == "zsh"
    with pytest.raises(ConfigError, match=r"\$SHELL is '/bin/tcsh': .*bash, zsh, fish"):
        find_shell("/bin/tcsh")
