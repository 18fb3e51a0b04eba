"""`python -m benchmarks`: every benchmark in quick mode, one after the other, each its table."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def find_benchmarks() -> list[str]:
    """Return the names of all benchmarks: `FOLDER/bench_NAME.py` below this file."""
    return sorted(_modules())


def _modules() -> dict[str, str]:
    """Return each benchmark's module by its name."""
    return {
        path.stem.removeprefix("bench_"): f"benchmarks.{path.parent.name}.{path.stem}"
        for path in HERE.glob("*/bench_*.py")
    }


def run_benchmark(name: str, arguments: list[str]) -> bool:
    """Run one in a process of its own, so that none warms or bloats the next."""
    print(f"\n== {name}", flush=True)
    start = time.monotonic()
    command = [sys.executable, "-m", _modules()[name], *arguments]
    code = subprocess.run(command, cwd=HERE.parent, check=False).returncode
    verdict = "" if code == 0 else f", exit code {code}"
    print(f"   {time.monotonic() - start:.0f} s{verdict}", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="default: all of " + ", ".join(find_benchmarks()))
    parser.add_argument("--full", action="store_true", help="full rounds and sizes (minutes each)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    found = parser.parse_args()
    known = find_benchmarks()
    if found.list:
        print("\n".join(known))
        return 0
    unknown = sorted(set(found.names) - set(known))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    arguments = [] if found.full else ["--quick"]
    failed = [name for name in found.names or known if not run_benchmark(name, arguments)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
