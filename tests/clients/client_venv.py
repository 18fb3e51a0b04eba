"""Load clients that others wrote, each in its own environment: `-m tests.clients.client_venv`.

vLLM's and SGLang's come with the engines of tests/engines, whose environments are read, not
changed. What cannot be installed here is skipped with the reason.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tests.engines.engine_venv import SGLANG, VLLM, EngineVenv, run


class ClientVenv(msgspec.Struct, frozen=True):
    """A client's environment: `requirements`, and all that an engine's environment has."""

    name: str
    requirements: tuple[str, ...]
    engine: EngineVenv | None = None

    @property
    def directory(self) -> Path:
        """Return where it is, below KVMESH_CLIENT_VENVS or beside other temporary files."""
        below = os.environ.get("KVMESH_CLIENT_VENVS") or tempfile.gettempdir()
        return Path(below) / f"kvmesh-client-{self.name}"

    def python(self) -> Path | None:
        """Return the interpreter of a finished environment, None when there is none."""
        complete = (self.directory / ".complete").exists()
        return self.directory / "bin" / "python" if complete else None

    def why_not_built(self) -> str:
        """Return why there is no finished environment."""
        failure = self.directory / ".failed"
        if failure.exists():
            return failure.read_text(encoding="utf-8")
        return f"no {self.name} in {self.directory}: python -m tests.clients.client_venv"

    def build(self) -> None:
        """Build it unless it is there. Raises `RuntimeError` with the end of what pip said."""
        if self.python() is not None:
            return
        if self.engine is not None:
            self.engine.build()
        run(sys.executable, "-m", "venv", "--clear", str(self.directory))
        python = self.directory / "bin" / "python"
        if self.engine is not None:
            site = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
            theirs = run(str(self.engine.directory / "bin" / "python"), "-c", site).strip()
            ours = Path(run(str(python), "-c", site).strip())
            (ours / "engine.pth").write_text(theirs + "\n", encoding="utf-8")
        if self.requirements:
            run(str(python), "-m", "pip", "--quiet", "install", *self.requirements)
        (self.directory / ".complete").touch()


CLIENTS: Final = (
    ClientVenv("vllm", (), VLLM),
    ClientVenv("sglang", ("datasets",), SGLANG),
    ClientVenv("guidellm", ("guidellm==0.8.1",)),
    ClientVenv("aiperf", ("aiperf==0.13.0",)),
)


FRAMEWORKS: Final = (
    ClientVenv("langchain", ("langchain-openai>=1,<2",)),
    ClientVenv("litellm", ("litellm>=1.80,<2",)),
)
"""What examples/clients/ is written for."""


def main() -> None:
    """Build all; the test of one that cannot be built skips with the reason."""
    for venv in (*CLIENTS, *FRAMEWORKS):
        try:
            venv.build()
        except (RuntimeError, OSError, subprocess.SubprocessError) as failed:
            venv.directory.mkdir(parents=True, exist_ok=True)
            (venv.directory / ".failed").write_text(str(failed), encoding="utf-8")
            print(failed, file=sys.stderr)  # noqa: T201 - a script


if __name__ == "__main__":
    main()
