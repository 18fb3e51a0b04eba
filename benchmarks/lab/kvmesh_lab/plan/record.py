"""A plan as it is kept in a file, and what checks of it have shown so far."""

from collections.abc import Mapping, Sequence
from math import exp, inf, log, sqrt
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError
from kvmesh_lab.plan.judge import Errors, Judge
from kvmesh_lab.plan.kinds import Kind, Mix, price_of
from kvmesh_lab.plan.targets import FIGURES, Figure, Target

UNCHECKED_SPREAD: Final = 0.15
"""The error that is assumed before any check, as one check more than there are: what the simulator
is held to against live engines."""

MOST_CHECKS: Final = 30
"""The newest checks that a plan keeps."""

MOST_OFF: Final = 10.0
"""A check counts as at most so many times off."""


class Foretold(msgspec.Struct, frozen=True):
    """One target's time, ms, with its error bar; None: too many requests get no answer."""

    target: str
    ms: float | None
    low_ms: float | None
    high_ms: float | None
    holds: bool


class Row(msgspec.Struct, frozen=True):
    """One fleet that was played: engines by kind, price an hour, and what to expect.

    `times` has p50, p90 and p99 of each figure, ms; `holds` that all targets hold, `surely` that
    all of their error bars do.
    """

    engines: dict[str, int]
    price: float
    foretold: list[Foretold]
    times: dict[str, list[float | None]]
    hit_rate: float
    busy: float
    failed: int
    holds: bool
    surely: bool


class Check(msgspec.Struct, frozen=True):
    """What one day showed: `ratios` are happened / simulated, by figure, on the requests and the
    number of engines of that day; `load` is its prompt tokens a second over those of the plan.
    """

    day: str
    engines: int
    load: float
    ratios: dict[str, Annotated[float, msgspec.Meta(gt=0)]]


class FleetPlan(msgspec.Struct, frozen=True):
    """A plan: `answer` is the cheapest fleet that holds, `sure` the cheapest that does with all of
    its error bar, {}: none. What the engines are taken to be is in `kinds`.
    """

    made: str
    source: str
    targets: list[Target]
    growth: float
    tokens_per_s: float
    policy: str
    routers: int
    kv_events: bool
    max_backlog_ms: float
    kinds: list[Kind]
    answer: dict[str, int]
    sure: dict[str, int]
    rows: list[Row]
    checks: list[Check] = []
    format: Literal[1] = 1


def read_plan(path: Path, flag: str) -> FleetPlan:
    """Return the plan of a file. Raises `ConfigError` for one that is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=FleetPlan)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"{flag} {path}: is no plan of `kvmesh plan --save`: {error}") from error


def write_plan(plan: FleetPlan, path: Path, flag: str) -> None:
    """Write it in place of what is there, whole or not at all. Raises `ConfigError`."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error


def errors_of(checks: Sequence[Check]) -> Errors:
    """Return how far predictions were off; a check that hit exactly, but for `UNCHECKED_SPREAD`,
    counts besides.
    """
    factor: dict[Figure, float] = {}
    spread: dict[Figure, float] = {}
    for figure in FIGURES:
        logs = [
            log(min(MOST_OFF, max(1.0 / MOST_OFF, one.ratios[figure])))
            for one in checks
            if figure in one.ratios
        ]
        count = len(logs) + 1
        mean = sum(logs) / count
        varies = UNCHECKED_SPREAD**2 + mean**2 + sum((one - mean) ** 2 for one in logs)
        factor[figure], spread[figure] = exp(mean), sqrt(varies / count)
    return Errors(factor, spread)


def with_check(plan: FleetPlan, check: Check) -> FleetPlan:
    """Return the plan with one more check; one of the same day is replaced."""
    before = [one for one in plan.checks if one.day != check.day]
    return msgspec.structs.replace(plan, checks=[*before, check][-MOST_CHECKS:])


def named(kinds: Sequence[Kind], mix: Mix | None) -> dict[str, int]:
    """Return the engines by kind."""
    counts = (0,) * len(kinds) if mix is None else mix
    return {kind.name: count for kind, count in zip(kinds, counts, strict=True) if count}


def row_of(judge: Judge, mix: Mix) -> Row:
    """Return what a fleet's plays showed; they are played to their ends."""
    verdicts, runs = judge.verdicts(mix), judge.runs(mix)
    count = len(runs)
    return Row(
        engines=named(judge.kinds, mix),
        price=round(price_of(judge.kinds, mix), 6),
        foretold=[
            Foretold(
                one.target.name,
                _finite(one.ms),
                _finite(one.low_ms),
                _finite(one.high_ms),
                one.holds,
            )
            for one in verdicts
        ],
        times={
            name: [_mean([run.times[name][place] for run in runs]) for place in range(3)]
            for name in FIGURES
        },
        hit_rate=sum(run.hit_rate for run in runs) / count,
        busy=sum(run.busy for run in runs) / count,
        failed=round(sum(run.failed for run in runs) / count),
        holds=all(one.holds for one in verdicts),
        surely=all(one.surely for one in verdicts),
    )


def _mean(values: Sequence[float]) -> float | None:
    return _finite(sum(values) / len(values))


def _finite(ms: float) -> float | None:
    return None if ms == inf else round(ms, 3)


def mix_of(plan: FleetPlan, engines: int) -> Mix:
    """Return the fleet of so many engines that ran. Raises `ConfigError` where kinds are unknown.

    Of several kinds a log does not tell which engine is which: only the plan's answer is known.
    """
    if len(plan.kinds) == 1:
        return (engines,)
    if sum(plan.answer.values()) != engines:
        raise ConfigError(
            f"{engines} engines served this log, the plan is for {words(plan.answer)}: a log does "
            "not tell their kinds; run the plan's fleet, or check a plan of one kind"
        )
    return tuple(plan.answer.get(kind.name, 0) for kind in plan.kinds)


def words(engines: Mapping[str, int]) -> str:
    """Return a fleet in words."""
    return " + ".join(f"{count} {name}" for name, count in engines.items()) or "none"
