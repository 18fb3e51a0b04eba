"""`kvmesh conformance picker`: hold an endpoint picker against its protocol, whoever made it."""

import importlib.util
import sys
from typing import Annotated

from cyclopts import App
from rich.console import Console

from kvmesh.app.process.running import Stop, first_of, run
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging
from kvmesh.settings.types import Flat
from kvmesh_lab.conformance.case import Result
from kvmesh_lab.conformance.options import ConformanceOptions
from kvmesh_lab.conformance.report import case_rows, print_report, report_of, write_json

command = App(name="conformance", help="Test a program against its protocol.")


@command.command(name="picker")
def try_picker_command(*, options: Annotated[ConformanceOptions, Flat] | None = None) -> None:
    """Test an endpoint picker against its protocol, over gRPC and behind a real Envoy.

    Exit code 1 when it breaks a rule of level "must"; no vendor's name is in what is checked.
    """
    options = options or ConformanceOptions()
    if not (is_installed("grpc") and is_installed("google.protobuf")):
        raise ConfigError(
            "the suite needs grpcio and protobuf: pip install 'kvmesh-lab[conformance]'"
        )
    from kvmesh_lab.conformance.picker import ALL_CASES, try_picker  # noqa: PLC0415  needs the extra

    console = Console()
    if options.list_cases:
        console.print("\n".join(case_rows(ALL_CASES)), soft_wrap=True, markup=False)
        return
    configure_logging("error", "auto", role="conformance")
    results: list[Result] = []

    whole = False

    async def try_all() -> None:
        nonlocal whole
        await try_picker(options, results.append)
        whole = True

    async def main(stop: Stop) -> None:
        await first_of(stop.wait(), try_all())

    run(main)
    report = report_of(options.target, results)
    print_report(report, console)
    if options.json is not None:
        write_json(report, options.json)
    if not whole:
        sys.stderr.write("kvmesh: stopped before all cases were tried\n")
    if report.counts["fail"] or not whole:
        sys.exit(1)


def is_installed(package: str) -> bool:
    """Return whether a package of the extra is there."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # not even the namespace it is in
        return False
