"""`python -m tests.fuzz TARGET SECONDS`: fuzz one target, or `all`, each in a process of its own.

It begins with the seeds and the kept corpus. What reaches new code joins that corpus, the rest of
what it finds interesting stays in .fuzz/TARGET. It ends with the name of an input that breaks a
target: give that input a name TARGET-… in tests/fuzz/broken, where a test runs it for ever.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import atheris

ROOMS = [
    "kvmesh.core",
    "kvmesh.actors",
    "kvmesh.transport.http",
    "kvmesh.transport.extproc",
    "kvmesh.transport.grpc",
    "kvmesh.transport.nats.trust",
]

with atheris.instrument_imports(include=ROOMS):
    from tests.fuzz.corpus import keep, kept
    from tests.fuzz.targets import TARGETS, seeds

AT_ONCE = 2
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=4096")


def run_target(target: str, *flags: str) -> None:
    """Give the process to libFuzzer, which ends it. For a merge it starts its first argument."""
    script = Path(f".fuzz/{target}.sh").absolute()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz {target} child "$@"\n')
    script.chmod(0o755)
    atheris.Setup([str(script), *LIMITS, *flags], TARGETS[target])
    atheris.Fuzz()


def fuzz(target: str, seconds: int) -> int:
    """Fuzz one target in a child process and keep the corpus; return its status."""
    with tempfile.TemporaryDirectory() as fresh:
        corpus = Path(".fuzz") / target
        corpus.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate([*seeds(target), *kept(target)]):
            (corpus / f"seed-{number}").write_bytes(one)
        place = f"-artifact_prefix=.fuzz/{target}-"
        status = _child(target, f"-max_total_time={seconds}", place, str(corpus))
        _child(target, "-merge=1", fresh, str(corpus))
        keep(target, (path.read_bytes() for path in Path(fresh).iterdir()))
    result = f"broken, see .fuzz/{target}.log" if status else "ok"
    sys.stdout.write(f"{target}: {result}, {len(kept(target))} inputs kept\n")
    return status


def _child(target: str, *flags: str) -> int:
    with Path(f".fuzz/{target}.log").open("ab") as log:
        argv = [sys.executable, "-m", "tests.fuzz", target, "child", *flags]
        return subprocess.run(argv, stdout=log, stderr=log, check=False).returncode


def main(target: str, seconds: int) -> int:
    """Return 1 when an input breaks a target."""
    targets = list(TARGETS) if target == "all" else [target]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return int(any(list(pool.map(partial(fuzz, seconds=seconds), targets))))


if __name__ == "__main__":
    if sys.argv[2] == "child":
        run_target(sys.argv[1], *sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
