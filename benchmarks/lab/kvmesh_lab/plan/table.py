"""A plan and its checks for people."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvmesh.bounds import counted
from kvmesh_lab.plan.checking import Compared
from kvmesh_lab.plan.record import Check, FleetPlan, Foretold, Row, errors_of, words
from kvmesh_lab.plan.targets import FIGURES


def print_plan(plan: FleetPlan, console: Console) -> None:
    """Print the fleets that were played, the answer, and what breaks with one engine fewer."""
    wanted = ", ".join(f"{one.name} {_time(one.limit_ms)}" for one in plan.targets)
    growth = "" if plan.growth == 1.0 else f", {plan.growth:g} times its load"
    table = _table(f"{plan.source}{growth}: {wanted}")
    columns = _columns(plan)
    for name, _ in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in plan.rows:
        table.add_row(*(show(row) for _, show in columns))
    console.print(table)
    for line in answer_lines(plan):
        console.print(line, highlight=False, soft_wrap=True)


def _columns(plan: FleetPlan) -> list[tuple[str, Callable[[Row], str]]]:
    """Return the columns: names and what each shows of a fleet."""
    found: list[tuple[str, Callable[[Row], str]]] = [("engines", lambda row: words(row.engines))]
    if any(kind.price != 1.0 for kind in plan.kinds):
        found.append(("an hour", lambda row: f"{row.price:,.2f}"))
    found += [(one.name, partial(_target, place)) for place, one in enumerate(plan.targets)]
    found.append(("hits", lambda row: f"{row.hit_rate:.0%}"))
    found.append(("busy", lambda row: f"{row.busy:.0%}"))
    if any(row.failed for row in plan.rows):
        found.append(("failed", lambda row: f"{row.failed:,}"))
    found.append(("holds", lambda row: "surely" if row.surely else "yes" if row.holds else "no"))
    return found


def _target(place: int, row: Row) -> str:
    return _bar(row.foretold[place])


def answer_lines(plan: FleetPlan) -> list[str]:
    """Return the answer in words."""
    if not plan.answer:
        most = ", ".join(f"{kind.most} {kind.name}" for kind in plan.kinds)
        return [f"Nothing holds the targets, up to {most} (--most allows more)."]
    lines = [f"Enough: {words(plan.answer)}."]
    broken = [_broken(row) for row in plan.rows if not row.holds and _is_part(row, plan.answer)]
    lines += [f"One fewer: {text}" for text in broken]
    if plan.sure and plan.sure != plan.answer:
        lines.append(f"With all of the error bar within the targets: {words(plan.sure)}.")
    elif not plan.sure:
        lines.append("Nothing that was tried holds with all of its error bar.")
    lines.append(errors_line(plan.checks))
    return lines


def errors_line(checks: Sequence[Check]) -> str:
    """Return what the error bar is made of."""
    if not checks:
        return "The error bar is assumed (15 %): no day was compared with a plan yet (--check)."
    errors = errors_of(checks)
    found = ", ".join(
        f"{name} x{errors.factor[name]:.2f} ± {errors.spread[name]:.0%}"
        for name in FIGURES
        if any(name in one.ratios for one in checks)
    )
    return f"Corrected by {counted(len(checks), 'check')}, happened / simulated: {found}."


def print_check(check: Check, rows: Sequence[Compared], console: Console) -> None:
    """Print what happened beside what was foretold."""
    console.print(
        f"{check.day}: {counted(check.engines, 'engine')}, "
        f"{check.load:.2f} times the load that was planned for",
        highlight=False,
    )
    table = _table("")
    for name in ("", "foretold", "simulated on that day's requests", "happened", "/ simulated"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.target,
            "-" if row.foretold is None else _bar(row.foretold),
            _time(row.simulated_ms),
            _time(row.happened_ms),
            f"x{row.happened_ms / row.simulated_ms:.2f}",
        )
    console.print(table)


def _is_part(row: Row, answer: Mapping[str, int]) -> bool:
    """Return whether a fleet is the answer less one engine."""
    names = {*row.engines, *answer}
    less = [answer.get(name, 0) - row.engines.get(name, 0) for name in names]
    return min(less) >= 0 and sum(less) == 1


def _broken(row: Row) -> str:
    missed = [f"{one.target} is {_time(one.ms)}" for one in row.foretold if not one.holds]
    return f"with {words(row.engines)} {' and '.join(missed)}."


def _bar(one: Foretold) -> str:
    """Return a time with what it is within on eight of ten days."""
    if one.ms is None or one.low_ms is None or one.high_ms is None:
        return "no answer"
    unit, scale = ("s", 1000.0) if one.ms >= 1000.0 else ("ms", 1.0)  # noqa: PLR2004  a second
    ms, low, high = (_three(ms / scale) for ms in (one.ms, one.low_ms, one.high_ms))
    return f"{ms} {unit} ({low}-{high})"


def _time(ms: float | None) -> str:
    if ms is None:
        return "no answer"
    return f"{_three(ms / 1000.0)} s" if ms >= 1000.0 else f"{_three(ms)} ms"  # noqa: PLR2004


def _three(value: float) -> str:
    """Return a number to three digits at least."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"  # noqa: PLR2004


def _table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
