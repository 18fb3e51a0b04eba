from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.unit.report.replay_reports import comparison, failure, outcome, report, run

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from kvmesh_lab.report.plots import plots_as_svg, write_plots

MAGIC = {".svg": b"<?xml", ".png": b"\x89PNG"}


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_suffix_chooses_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plots{suffix}"

    write_plots(comparison(), path)

    assert path.read_bytes().startswith(MAGIC[suffix])


def test_the_drawing_is_one_element_that_names_runs_and_panels() -> None:
    svg = plots_as_svg(comparison())

    root = ET.fromstring(svg)  # noqa: S314  our own drawing
    texts = " ".join("".join(node.itertext()) for node in root.iter())
    for text in ("round-robin", "kv", "time to first token", "hit rate over time", "w3"):
        assert text in texts


def test_a_run_without_successes_and_one_with_many_workers_are_drawn() -> None:
    many = [outcome(i, ttft_ms=5, cached=5, worker=f"w{i}") for i in range(20)]

    assert "20 workers" in plots_as_svg(report(run("kv", *many)))
    assert plots_as_svg(report(run("kv", failure(0, "connect", ""))))
