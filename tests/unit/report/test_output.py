import importlib.util
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kvmesh.errors import ConfigError
from kvmesh_lab.report.output import ReportFiles, check_plots, deliver_report
from tests.unit.report.replay_reports import comparison

HAS_PLOTS = importlib.util.find_spec("matplotlib") is not None


def console() -> Console:
    return Console(file=StringIO(), width=120)


def test_files_are_written_and_named(tmp_path: Path) -> None:
    files = ReportFiles(json=tmp_path / "r.json", csv=tmp_path / "r.csv")
    out = console()

    deliver_report(comparison(), files, out)

    assert isinstance(out.file, StringIO)
    text = out.file.getvalue()
    assert "r.json" in text
    assert (tmp_path / "r.json").stat().st_size > 0
    assert (tmp_path / "r.csv").stat().st_size > 0


def test_a_file_that_cannot_be_written_does_not_lose_the_others(tmp_path: Path) -> None:
    files = ReportFiles(json=tmp_path / "missing" / "r.json", csv=tmp_path / "r.csv")

    with pytest.raises(ConfigError, match=r"r\.json: No such file"):
        deliver_report(comparison(), files, console())

    assert (tmp_path / "r.csv").exists()


@pytest.mark.skipif(not HAS_PLOTS, reason="the extra `plots` is not installed")
def test_page_and_picture_are_written(tmp_path: Path) -> None:
    files = ReportFiles(html=tmp_path / "r.html", plot=tmp_path / "r.svg")

    check_plots(files)
    deliver_report(comparison(), files, console())

    assert "<svg" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert (tmp_path / "r.svg").exists()


def test_plots_without_matplotlib_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name else name)

    with pytest.raises(ConfigError, match=r"--html need matplotlib: pip .*'kvmesh-lab\[plots\]'"):
        check_plots(ReportFiles(html=Path("r.html")))
    check_plots(ReportFiles(json=Path("r.json")))
