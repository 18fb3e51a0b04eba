"""Other programs, run with what they said in the error."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.release.errors import ReleaseError

SHOWN: Final = 4000
"""Characters of a failed program's output that are repeated."""


def run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what it printed. Raises `ReleaseError` with the end of its output."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise ReleaseError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        said = done.stdout.strip()[-SHOWN:]
        raise ReleaseError(f"{' '.join(command[:6])}: status {done.returncode}\n{said}")
    return done.stdout
