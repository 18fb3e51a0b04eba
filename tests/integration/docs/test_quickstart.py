"""What the quickstart says of its comparison holds."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "start" / "quickstart.md"

pytestmark = pytest.mark.integration


def test_the_comparison_shows_on_a_trace_of_size_what_routing_by_cache_gains(
    tmp_path: Path,
) -> None:
    text = PAGE.read_text()
    line = next(one for one in text.splitlines() if one.startswith("kvmesh simulate "))
    said = re.search(r"(\d+) % with `kv`, (\d+) % with `round-robin`", text)
    assert said is not None
    figures, spent = tmp_path / "figures.json", getrusage(RUSAGE_CHILDREN).ru_utime

    command = [sys.executable, "-m", *shlex.split(line), "--json", str(figures)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    runs = {run["name"]: run["summary"] for run in json.loads(figures.read_text())["runs"]}
    hits = [round(100 * runs[name]["hit_rate"]) for name in ("kv", "round-robin")]
    assert hits == [int(said[1]), int(said[2])]
    assert hits[0] >= 50
    assert hits[1] <= 30
    assert runs["kv"]["requests"] >= 300
    assert getrusage(RUSAGE_CHILDREN).ru_utime - spent < 8.0
