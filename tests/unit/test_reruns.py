"""How tests are run again, tried on small suites in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.reruns import MOST_RERUNS

REPOSITORY = Path(__file__).parents[2]
MARKERS = "[pytest]\nmarkers =\n    integration: real\n    browser: real\n    chaos: long\n"
FAILS_FIRST = """
import pathlib, pytest

@pytest.mark.{mark}
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    tries = pathlib.Path(__file__).with_suffix(f".{{number}}")
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert len(tries.read_text()) > {failures}
"""


def run_suite(folder: Path, *flags: str, reruns: str = "2", **files: str) -> tuple[int, str]:
    """Return how a suite of `files` ended, and what it printed."""
    (folder / "pytest.ini").write_text(MARKERS)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.reruns", "-p", "no:cacheprovider", *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "KVMESH_RERUNS": reruns,
            "KVMESH_RERUN_DELAY_S": "0",
        },
    )
    return done.returncode, done.stdout


def test_a_pure_test_is_never_run_again(tmp_path: Path) -> None:
    suite = FAILS_FIRST.format(mark="chaos", count=1, failures=1)

    code, out = run_suite(tmp_path, test_pure=suite)

    assert code == 1
    assert "reruns: 0, at most 5 in a run\n" in out
    assert "1 failed in" in out


def test_too_many_reruns_fail_a_run_in_which_all_passed(tmp_path: Path) -> None:
    half = FAILS_FIRST.format(mark="integration", count=(MOST_RERUNS + 1) // 2, failures=1)

    code, out = run_suite(tmp_path, "-n", "2", test_one=half, test_other=half)

    assert code == 1
    assert "reruns: 6, at most 5 in a run: too many, the run fails\n" in out
    assert "6 passed, 6 rerun in" in out
