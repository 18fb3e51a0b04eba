"""`kvmesh completion SHELL`: what a shell needs to complete commands, flags and their values."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

from cyclopts import Parameter

from kvmesh.cli import app
from kvmesh.errors import ConfigError

Shell = Literal["bash", "zsh", "fish"]

ANY_NAME = """
case $funcstack[1] in
  _kvmesh|_cyclopts_kvmesh) _cyclopts_kvmesh "$@" ;;
  *) compdef _cyclopts_kvmesh kvmesh ;;
esac
"""
"""For zsh: the script may be sourced, or stand in `fpath` as `_kvmesh`."""

LOADED = {
    "bash": "new shells load it, where bash-completion is installed or {rc} sources it",
    "zsh": "new shells load it: {rc} has its folder in fpath",
    "fish": "new shells load it",
}
"""What makes a shell load the script that was written."""


def command(
    shell: Annotated[Shell | None, Parameter(help="Default: the one of $SHELL.")] = None,
    *,
    install: Annotated[
        bool,
        Parameter(
            help="Write it where the shell looks for it, and name its folder in ~/.bashrc or "
            "~/.zshrc, in place of printing it."
        ),
    ] = False,
) -> None:
    """Print the completion script of a shell: `source <(kvmesh completion bash)`."""
    chosen = shell or find_shell(os.environ.get("SHELL", ""))
    if not install:
        script = app.generate_completion(prog_name="kvmesh", shell=chosen)
        sys.stdout.write(script + ANY_NAME if chosen == "zsh" else script)
        return
    try:
        path = app.install_completion(shell=chosen)
    except OSError as error:
        raise ConfigError(
            f"--install: {error.filename}: {error.strerror}; print it instead: "
            f"kvmesh completion {chosen} > FILE"
        ) from error
    rc = Path.home() / f".{chosen}rc"
    sys.stdout.write(f"{path} is written; {LOADED[chosen].format(rc=rc)}\n")


def find_shell(path: str) -> Shell:
    """Return the shell at `path`, as $SHELL tells it. Raises `ConfigError` for another one."""
    name = Path(path).name
    for shell in get_args(Shell):
        if shell == name:
            return shell  # type: ignore[no-any-return]  # get_args forgets the literal's type
    raise ConfigError(
        f"$SHELL is {path!r}: say which shell, e.g. `kvmesh completion bash`; one of "
        f"{', '.join(get_args(Shell))}"
    )
