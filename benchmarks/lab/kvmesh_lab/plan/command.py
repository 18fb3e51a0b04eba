"""`kvmesh plan`: how many engines, of which kinds, hold latency targets."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from rich.console import Console

from kvmesh.observe import configure_logging
from kvmesh.settings.types import Flat
from kvmesh_lab.plan.checking import check_plan
from kvmesh_lab.plan.kinds import Mix
from kvmesh_lab.plan.options import PlanOptions
from kvmesh_lab.plan.planning import make_plan
from kvmesh_lab.plan.record import (
    FleetPlan,
    errors_of,
    read_plan,
    with_check,
    write_plan,
)
from kvmesh_lab.plan.table import errors_line, print_check, print_plan
from kvmesh_lab.plan.workload import read_workload


def plan(options: PlanOptions, console: Console, shown: Console) -> FleetPlan:
    """Make and print a plan, or check one; progress goes to `shown`. Return the plan.

    Raises `ConfigError` before anything is simulated.
    """
    options.check_values()
    if options.check is not None:
        return _check(options, console, shown)
    before = None
    if options.save is not None and options.save.exists():
        before = read_plan(options.save, "--save")
    checks = [] if before is None else before.checks
    workload = read_workload(options.reading())
    made = datetime.now(UTC).isoformat(timespec="seconds")
    with shown.status("planning …") as status:

        def watch(mix: Mix) -> None:
            status.update(f"playing {' + '.join(map(str, mix))} engines …")

        found = make_plan(options, workload, errors_of(checks), made, watch)
    found = msgspec.structs.replace(found, checks=checks)
    if options.save is not None:
        write_plan(found, options.save, "--save")
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        print_plan(found, console)
    return found


def _check(options: PlanOptions, console: Console, shown: Console) -> FleetPlan:
    assert options.check is not None
    before = read_plan(options.check, "--check")
    workload = read_workload(options.reading())
    day = datetime.fromtimestamp(options.log.stat().st_mtime, UTC).date().isoformat()
    with shown.status("comparing …"):
        check, rows = check_plan(before, workload, day, lambda _: None)
    after = with_check(before, check)
    write_plan(after, options.check, "--check")
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(check)).decode() + "\n")
    else:
        print_check(check, rows, console)
        console.print(errors_line(after.checks), highlight=False, soft_wrap=True)
    return after


def command(options: Annotated[PlanOptions, Flat]) -> None:
    """Say how many engines are enough for a load, and check that against what happened."""
    configure_logging("warning", "auto")
    found = plan(options, Console(), Console(stderr=True))
    sys.exit(0 if found.answer or options.check else 1)
