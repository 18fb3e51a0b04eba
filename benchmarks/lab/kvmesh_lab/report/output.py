"""Where a replay's report goes: the console, and the files asked for."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from kvmesh.errors import ConfigError
from kvmesh_lab.report.export import write_csv, write_json
from kvmesh_lab.report.html import render_html
from kvmesh_lab.report.statistics import ReplayReport
from kvmesh_lab.report.table import print_report


class ReportFiles(msgspec.Struct, frozen=True):
    """Files to write; None for none. `html` and `plot` need the extra `plots`."""

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    plot: Path | None = None


def check_plots(files: ReportFiles) -> None:
    """Refuse plots without matplotlib, before an hour of replay is spent. Raises `ConfigError`."""
    wanted = [
        flag for flag, path in (("--html", files.html), ("--plot", files.plot)) if path is not None
    ]
    if wanted and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{' and '.join(wanted)} need matplotlib: pip install 'kvmesh-lab[plots]' "
            "(--json and --csv do without)"
        )


def deliver_report(report: ReplayReport, files: ReportFiles, console: Console) -> None:
    """Print the report and write its files.

    Raises `ConfigError` when a file cannot be written, after all others were.
    """
    print_report(report, console)
    deliver_files(report, files, console)


def deliver_files(report: ReplayReport, files: ReportFiles, console: Console) -> None:
    """Write the report's files.

    Raises `ConfigError` when a file cannot be written, after all others were.
    """
    writers: tuple[tuple[Path | None, Callable[[ReplayReport, Path], None]], ...] = (
        (files.json, write_json),
        (files.csv, write_csv),
        (files.html, write_html),
        (files.plot, write_plots),
    )
    failed: list[str] = []
    for path, write in writers:
        if path is None:
            continue
        try:
            write(report, path)
        except OSError as error:
            failed.append(f"{path}: {error.strerror}")
        else:
            console.print(f"wrote {path}", soft_wrap=True, highlight=False)
    if failed:
        raise ConfigError("cannot write " + "; ".join(failed))


def write_html(report: ReplayReport, path: Path) -> None:
    """Write the report as one page."""
    # matplotlib may be missing, and takes long to load.
    from kvmesh_lab.report.plots import plots_as_svg  # noqa: PLC0415

    path.write_text(render_html(report, plots_as_svg(report)), encoding="utf-8")


def write_plots(report: ReplayReport, path: Path) -> None:
    """Write all plots as one picture."""
    # As above.
    from kvmesh_lab.report import plots  # noqa: PLC0415

    plots.write_plots(report, path)
