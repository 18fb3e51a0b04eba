"""`make next-nats`: what of kvmesh's use of nats-py would break with its next minor version.

kvmesh uses private names of nats-py (`PRIVATE` in `kvmesh/transport/nats/link/client.py`), so
pyproject.toml pins the minor version. Here the newest one beyond that, a pre-release too, is put
before the installed one, and the contracts of NATS are tested with it. It prints what it found;
where there is none, or no index, it says so. Exit code 1: something broke.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
INSTALL_S: Final = 15
TEST_S: Final = 35
TESTS: Final = (
    "tests/unit/transport/nats/link",
    "tests/contract/test_bus.py",
    "tests/contract/test_control.py",
    "tests/contract/test_journal.py",
    "tests/contract/test_key_value.py",
)


def beyond_the_pin(pyproject: str) -> str:
    """Return what pip is to look for, given the text of pyproject.toml."""
    for one in tomllib.loads(pyproject)["project"]["dependencies"]:
        found = re.match(r"nats-py\b.*<(\d+\.\d+)$", one)
        if found:
            return f"nats-py>={found[1]}.dev0"
    raise ValueError("pyproject.toml pins no minor version of nats-py: nats-py>=A.B,<A.C")


def install(wanted: str, folder: Path) -> str:
    """Put it into `folder`; return why that cannot be, "" when it is done."""
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    line += ["--pre", "--no-deps", "--retries", "1", "--target", str(folder), wanted]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the index does not answer in {INSTALL_S} s"
    if done.returncode == 0:
        return ""
    if "from versions: none" not in done.stderr and "No matching distribution" in done.stderr:
        return f"the index has no {wanted}"
    return f"the index cannot be read: {(done.stderr.strip().splitlines() or ['?'])[-1]}"


def run_tests(folder: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `tests` with what is in `folder` before all that is installed."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    line = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-k"]
    line += ["not container", "-p", "no:cacheprovider", "--tb=line", *tests]
    environment = os.environ | {"PYTHONPATH": path, "KVMESH_RERUNS": "0"}
    return subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TEST_S, check=False
    )


def try_next(wanted: str, tests: Sequence[str] = TESTS) -> int:
    """Test against it, print what came of it, return the exit code."""
    with tempfile.TemporaryDirectory(prefix="kvmesh-next-nats-") as name:
        folder = Path(name)
        if why := install(wanted, folder):
            sys.stdout.write(f"next-nats: not tried: {why}\n")
            return 0
        version = next(folder.glob("nats_py-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        try:
            done = run_tests(folder, tests)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"next-nats: nats-py {version}: not done in {TEST_S} s\n")
            return 1
    broken = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    summary = (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
    sys.stdout.write("".join(f"{line}\n" for line in broken))
    sys.stdout.write(f"next-nats: nats-py {version}: {summary}\n")
    return int(done.returncode != 0)


if __name__ == "__main__":
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    sys.exit(try_next(sys.argv[1] if len(sys.argv) > 1 else beyond_the_pin(text)))
