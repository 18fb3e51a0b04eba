"""What `bench_faults` plays, and what it makes of the answers: loads, cells, tables, verdicts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, inf, isinf, log
from typing import Final

import msgspec

from kvmesh_lab.mocker.model.faults import BAD_ANSWERS

HEALTHY: Final = "none"
"""The fault of cells in which nothing is wrong: what the others' latencies are compared with."""

ALLOWED_RATIO: Final = 1.2
"""p90 of the served over the healthy fleet's that still passes."""

FLAP: Final = "2:2"
HANG_TIMEOUT_S: Final = 10.0
HANG_SHARE: Final = 0.3
"""Of the requests of another fault: each that hangs takes its client's timeout."""

APART_S: Final = 0.5
"""Doors that are measured side by side begin so long after one another: what is not waiting of a
cell then hardly meets the others'.
"""
LONGEST: Final = 4096
"""Tokens of the longest whole answer; their number is even by its logarithm."""
LONG: Final = (1000, 100)
QUICK_LONG: Final = (24, 12)
"""Requests, and how many are in flight, of the cells with long answers."""
QUICK_LONGEST: Final = 256
PATIENT_S: Final = 3600.0

GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole part, are spread evenly."""

CYCLES: Final = 2
"""Times that a cell with a flapping engine sees it good and bad."""


class Fault(msgspec.Struct, frozen=True):
    """What the sick engine is told; `waits` when such cells mostly wait, so that doors may be
    measured side by side.

    No fault, and told to all engines: steps take `slowdown` times as long, the next `first_pause_s`
    more. `long`: answers are whole ones of 1 to `LONGEST` tokens, after short ones.
    """

    name: str
    fail: tuple[str, ...]
    flap: str = ""
    waits: bool = False
    slowdown: float = 1.0
    first_pause_s: float = 0.0
    long: bool = False


FAULTS: Final = (
    Fault("500", ("1:500",)),
    Fault("429", ("1:429",)),
    Fault("502", ("1:502",)),
    Fault("reset", ("1:reset",)),
    Fault("cut", ("1:cut",)),
    Fault("hang", ("1:hang",), waits=True),
    Fault("slow by 10", ("1:slow=10",), waits=True),
    Fault("flapping 500", ("1:500",), FLAP, waits=True),
    Fault("long answers, 1 x", (), waits=True, long=True),
    Fault("long answers, 5 x", (), waits=True, long=True, slowdown=5.0),
    Fault("long answers, 20 x", (), waits=True, long=True, slowdown=20.0),
    Fault("first call pauses 60 s", (), waits=True, first_pause_s=60.0),
    *(Fault(f"200, {name}", (f"1:{name}",)) for name in BAD_ANSWERS),
)
NO_FAULT: Final = Fault(HEALTHY, ())
QUICK_FAULTS: Final = ("500", "reset", "hang")


class Load(msgspec.Struct, frozen=True):
    """`requests` by so many clients at once, each waiting `pause_s` between two of its own."""

    name: str
    requests: int
    in_flight: int
    stream: bool = False
    pause_s: float = 0.0
    timeout_s: float = 30.0
    longest: int = 0

    def tokens(self, number: int) -> int | None:
        """Return how long the answer of a request is to be, None: as usual. The same each time."""
        if not self.longest:
            return None
        share = (number * GOLDEN) % 1.0
        return min(self.longest, int(exp(share * log(self.longest + 1))))


ONE: Final = Load("one at a time", 20, 1)
EIGHT: Final = Load("8 in flight", 80, 8)
STREAMS: Final = Load("8 streams", 40, 8, stream=True)


def loads_for(fault: Fault, *, quick: bool) -> list[Load]:
    """Return the loads of a fault's cells: fewer requests where they hang, paced where it flaps."""
    if fault.long:
        requests, in_flight = QUICK_LONG if quick else LONG
        longest = QUICK_LONGEST if quick else LONGEST
        name = f"whole, 1 to {longest:,} tokens"
        return [Load(name, requests, in_flight, timeout_s=PATIENT_S, longest=longest)]
    if fault.first_pause_s:
        return [msgspec.structs.replace(EIGHT, timeout_s=PATIENT_S)]
    loads = [ONE, EIGHT] if quick else [ONE, EIGHT, STREAMS]
    change = msgspec.structs.replace
    if quick:
        loads = [change(one, requests=one.requests // 2) for one in loads]
    if fault.name == "hang":
        timeout_s = HANG_TIMEOUT_S / 2 if quick else HANG_TIMEOUT_S
        sizes = [round(one.requests * HANG_SHARE) for one in loads]
        pairs = zip(loads, sizes, strict=True)
        loads = [change(one, requests=size, timeout_s=timeout_s) for one, size in pairs]
    if fault.flap:
        lasts_s = CYCLES * sum(float(part) for part in fault.flap.split(":"))
        loads = [change(one, pause_s=lasts_s / (one.requests / one.in_flight)) for one in loads]
    return loads


def head_start_s(place: int, doors: int, load: Load) -> float:
    """Return when the door in that place of the side by side begins: paced ones within a pause."""
    return place * (load.pause_s / doors or APART_S)


class Answer(msgspec.Struct, frozen=True):
    """One request as its client saw it; `problem` is "" for a whole 200."""

    ms: float
    problem: str = ""


class Cell(msgspec.Struct, frozen=True, tag="cell"):
    """One door under one fault and one load. `attempts` are requests that met the sick engine;
    the latencies are of the served, None when there is none.
    """

    door: str
    fault: str
    load: str
    requests: int
    failed: int
    attempts: int
    p50_ms: float | None
    p90_ms: float | None
    problems: Mapping[str, int]
    served_ms: Sequence[float] = ()


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """Whether one of our doors did as well as the best peer in a cell, and as with nothing wrong.

    `ratio` is infinite when nothing was served. None where there is nothing to compare with.
    """

    door: str
    fault: str
    load: str
    failed: int
    best_peer_failed: int | None
    ratio: float | None

    @property
    def fails_no_more(self) -> bool | None:
        """Return whether no peer had fewer failures."""
        return None if self.best_peer_failed is None else self.failed <= self.best_peer_failed

    @property
    def is_quick(self) -> bool | None:
        """Return whether the served waited hardly longer than with a healthy fleet."""
        return None if self.ratio is None else self.ratio <= ALLOWED_RATIO


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the least value that `share` of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def make_cell(door: str, fault: str, load: str, answers: Sequence[Answer], attempts: int) -> Cell:
    """Return what became of a cell's requests."""
    served = [one.ms for one in answers if not one.problem]
    problems = Counter(one.problem for one in answers if one.problem)
    return Cell(
        door=door,
        fault=fault,
        load=load,
        requests=len(answers),
        failed=len(answers) - len(served),
        attempts=attempts,
        p50_ms=quantile(served, 0.5),
        p90_ms=quantile(served, 0.9),
        problems=dict(problems),
        served_ms=served,
    )


def healthy_p90_ms(cells: Iterable[Cell], door: str, load: str) -> float | None:
    """Return the p90 of all requests that a door served while nothing was wrong."""
    return quantile(
        (
            ms
            for cell in cells
            if (cell.door, cell.fault, cell.load) == (door, HEALTHY, load)
            for ms in cell.served_ms
        ),
        0.9,
    )


def ratio_of(cell: Cell, cells: Iterable[Cell]) -> float | None:
    """Return the cell's p90 over that of the same door's healthy fleet in this run; infinity when
    nothing was served, None when that was not measured.
    """
    healthy = healthy_p90_ms(cells, cell.door, cell.load)
    if healthy is None:
        return None
    return inf if cell.p90_ms is None else cell.p90_ms / healthy


def judge(cells: Sequence[Cell], ours: Iterable[str]) -> list[Verdict]:
    """Return a verdict for each cell of one of our doors, in the order they were played."""
    own = set(ours)
    verdicts: list[Verdict] = []
    for cell in cells:
        if cell.door not in own or cell.fault == HEALTHY:
            continue
        peers = [
            other.failed
            for other in cells
            if other.door not in own and (other.fault, other.load) == (cell.fault, cell.load)
        ]
        verdicts.append(
            Verdict(
                door=cell.door,
                fault=cell.fault,
                load=cell.load,
                failed=cell.failed,
                best_peer_failed=min(peers, default=None),
                ratio=ratio_of(cell, cells),
            )
        )
    return verdicts


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table; the first row is its head."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fault_table(fault: str, cells: Sequence[Cell]) -> str:
    """Return a fault's table: a row a door; failed of all, requests that met the sick engine,
    p50 and p90 of the served and that p90 over the healthy fleet's, for each load.
    """
    own = [cell for cell in cells if cell.fault == fault]
    loads = list(dict.fromkeys(cell.load for cell in own))
    head = ["door"]
    for load in loads:
        head += [f"{load}: failed", "at the sick", "p50 / p90 ms", "of healthy"]
    rows = [head]
    for door in dict.fromkeys(cell.door for cell in own):
        row = [door]
        for load in loads:
            found = [cell for cell in own if (cell.door, cell.load) == (door, load)]
            row += _shown(found[0], cells) if found else ["-"] * 4
        rows.append(row)
    return markdown(rows)


def _shown(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    ratio = ratio_of(cell, cells)
    counted = ", ".join(f"{count} x {name}" for name, count in sorted(cell.problems.items()))
    failed = f"**{cell.failed}** of {cell.requests} ({counted})" if cell.failed else "0"
    times = "-" if cell.p50_ms is None else f"{cell.p50_ms:,.0f} / {cell.p90_ms:,.0f}"
    return [failed, str(cell.attempts), times, _times(ratio)]


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Return a row a fault and load, a column a door: what is met, and what is MISSED."""
    doors = list(dict.fromkeys(one.door for one in verdicts))
    rows = [["fault", "load", "best peer failed", *doors]]
    for fault, load in dict.fromkeys((one.fault, one.load) for one in verdicts):
        found = {one.door: one for one in verdicts if (one.fault, one.load) == (fault, load)}
        best = next(iter(found.values())).best_peer_failed
        cells = [_verdict(found[door]) if door in found else "-" for door in doors]
        rows.append([fault, load, "-" if best is None else str(best), *cells])
    return markdown(rows)


def _verdict(verdict: Verdict) -> str:
    failed = f"{verdict.failed} failed" + _mark(verdict.fails_no_more)
    return f"{failed}, {_times(verdict.ratio)}{_mark(verdict.is_quick)}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "none served" if isinf(ratio) else f"x{ratio:.2f}"


def _mark(met: bool | None) -> str:
    return {True: "", False: " **MISSED**", None: " (?)"}[met]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return in how many cells the two goals were met."""
    both = [
        ("failed requests at most the best peer's", [one.fails_no_more for one in verdicts]),
        (f"p90 of the served at most {ALLOWED_RATIO} x healthy", [v.is_quick for v in verdicts]),
    ]
    return "\n".join(
        f"{text}: {met.count(True)} of {len(met) - met.count(None)} cells" for text, met in both
    )
