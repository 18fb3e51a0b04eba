"""What is promised of KV routing, and whether a pass kept it."""

from collections.abc import Mapping
from typing import Final, Literal, assert_never

import msgspec

from kvmesh_lab.demo.measures import Measured
from kvmesh_lab.demo.texts import Demonstration, LoadName

Policy = Literal["kv", "round-robin", "random"]
Verdict = Literal["kept", "above", "missed", "baseline", "not applicable"]
Kind = Literal["hit rate", "TTFT", "throughput", "utilisation", "same worker"]

BASELINE: Final[Policy] = "round-robin"


class Promise(msgspec.Struct, frozen=True):
    """A range that a figure shall reach: at least `low`, or at most `high` for what shall be small.

    Shares of 1. TTFT and throughput are changes against round robin: a TTFT of -0.3 is 30 % less.
    """

    kind: Kind
    low: float
    high: float
    smaller: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A policy's figure, its words, and whether it keeps the promise."""

    value: float | None
    text: str
    verdict: Verdict


class Row(msgspec.Struct, frozen=True):
    """One promise at one demonstration and load; `why` says why it is not applicable."""

    promise: Kind
    promised: str
    cells: dict[str, Cell]
    why: str = ""


class Scene(msgspec.Struct, frozen=True):
    """One demonstration at one load under each policy.

    `savable_ttft` is how much shorter, 0 to 1, the TTFT of a prompt of this length was with all of
    it cached than with nothing, one request at a time: no routing can save more.
    """

    demonstration: Demonstration
    load: LoadName
    lanes: int
    dialogues: int
    savable_ttft: float
    passes: dict[str, Measured]


TTFT: Final = Promise("TTFT", -0.70, -0.30, smaller=True)
THROUGHPUT: Final = Promise("throughput", 0.20, 0.40)
UTILISATION: Final = Promise("utilisation", 0.0, 0.20, smaller=True)

NO_BASELINE: Final = "round robin, which it compares with, was not run"

PROMISES: Final[Mapping[Demonstration, tuple[Promise, ...]]] = {
    "shared system prompt": (Promise("hit rate", 0.60, 0.80), TTFT, THROUGHPUT, UTILISATION),
    "multi-turn": (
        Promise("hit rate", 0.70, 0.90),
        Promise("same worker", 0.98, 1.0),
        TTFT,
        THROUGHPUT,
        UTILISATION,
    ),
    "load spread": (UTILISATION,),
    "related queries": (Promise("hit rate", 0.40, 0.60), TTFT, THROUGHPUT, UTILISATION),
}
"""The ranges are those that guides to KV routing give."""


def judge(scene: Scene) -> list[Row]:
    """Return a row for each promise of the scene's demonstration."""
    return [_row(promise, scene) for promise in PROMISES[scene.demonstration]]


def missed(rows: list[Row], policy: str = "kv") -> list[Row]:
    """Return the rows whose promise `policy` missed."""
    return [row for row in rows if row.cells.get(policy, _NONE).verdict == "missed"]


_NONE: Final = Cell(None, "", "not applicable")


def _row(promise: Promise, scene: Scene) -> Row:
    why = why_not_applicable(promise, scene)
    cells: dict[str, Cell] = {}
    for policy, measured in scene.passes.items():
        value, text = figure(promise.kind, measured, scene)
        relative = promise.kind in {"TTFT", "throughput"}
        if why or value is None:
            verdict: Verdict = "not applicable"
        elif relative and policy == BASELINE:
            verdict = "baseline"
        else:
            verdict = _verdict(promise, value)
        cells[policy] = Cell(value, text, verdict)
    return Row(promise.kind, _promised(promise), cells, why)


def figure(kind: Kind, measured: Measured, scene: Scene) -> tuple[float | None, str]:
    """Return what a promise of this kind is about, as a number and in words."""
    base = scene.passes.get(BASELINE)
    match kind:
        case "hit rate":
            return measured.hit_rate, f"{measured.hit_rate:.0%}"
        case "TTFT":
            return _compare(measured.ttft_s, base.ttft_s if base else None, 1000.0, " ms")
        case "throughput":
            return _compare(measured.tokens_per_s, base.tokens_per_s if base else None, 1.0, "/s")
        case "same worker":
            value = measured.same_worker
            return value, "-" if value is None else f"{value:.0%}"
        case "utilisation":
            text = f"{100 * measured.busy_spread:.0f} points, tokens {measured.served_spread:.0%}"
            return max(measured.busy_spread, measured.served_spread), text
    assert_never(kind)


def why_not_applicable(promise: Promise, scene: Scene) -> str:
    """Return why no policy could keep the promise here, "" where it can be kept.

    From what was sent and what a mesh can do at best, never from how a policy did.
    """
    workers = max((one.workers for one in scene.passes.values()), default=0)
    busy = scene.lanes >= 2 * workers
    match promise.kind:
        case "hit rate":
            return _why_no_hits(promise, scene)
        case "TTFT":
            return _why_no_ttft(promise, scene)
        case "throughput":
            return _why_no_throughput(scene, busy=busy)
        case "same worker":
            return "conversations of a busy worker may move" if busy else ""
        case "utilisation":
            if spread_at_best(scene.dialogues, workers) <= promise.high:
                return ""
            return f"{scene.dialogues} on {workers} workers are not within 20 % at best"
    assert_never(promise.kind)


def _why_no_hits(promise: Promise, scene: Scene) -> str:
    ceiling = max((one.ceiling for one in scene.passes.values()), default=0.0)
    ready = max((one.ready for one in scene.passes.values()), default=0.0)
    if ceiling < promise.low:
        return f"one cache shared by all workers would hit {ceiling:.0%}"
    if ready < promise.low:
        return f"sent at once: no worker has more than {ready:.0%} cached by then"
    return ""


def _why_no_ttft(promise: Promise, scene: Scene) -> str:
    if BASELINE not in scene.passes:
        return NO_BASELINE
    if not any(one.high_overlap for one in scene.passes.values()):
        return "of no prompt half was sent before"
    if scene.savable_ttft < -promise.high:
        return f"a wholly cached prompt of this length saves {scene.savable_ttft:.0%}"
    return ""


def _why_no_throughput(scene: Scene, *, busy: bool) -> str:
    requests = max((one.requests for one in scene.passes.values()), default=0)
    if BASELINE not in scene.passes:
        return NO_BASELINE
    if not busy:
        return f"{scene.lanes} at a time leave workers idle: clients set how much is served"
    if requests < 2 * scene.lanes:
        return f"{requests} requests, {scene.lanes} of them at once, are no rate"
    return ""


def spread_at_best(dialogues: int, workers: int) -> float:
    """Return the spread of equal dialogues dealt to the workers as evenly as can be."""
    most = -(-dialogues // max(1, workers))
    return (most - dialogues // max(1, workers)) / most if most else 0.0


def _verdict(promise: Promise, value: float) -> Verdict:
    if promise.smaller:
        return "missed" if value > promise.high else "above" if value < promise.low else "kept"
    return "missed" if value < promise.low else "above" if value > promise.high else "kept"


def _promised(promise: Promise) -> str:
    match promise.kind:
        case "hit rate":
            return f"{promise.low:.0%} to {promise.high:.0%}"
        case "TTFT":
            return f"{promise.high:.0%} to {promise.low:.0%}"
        case "throughput":
            return f"{promise.low:+.0%} to {promise.high:+.0%}"
        case "utilisation":
            return f"within {promise.high:.0%}"
        case "same worker":
            return f"{promise.low:.0%}"
    assert_never(promise.kind)


def _compare(
    value: float | None, base: float | None, factor: float, unit: str
) -> tuple[float | None, str]:
    """Return the change from `base`, and value and change in words."""
    if value is None:
        return None, "-"
    text = f"{factor * value:.0f}{unit}"
    if not base:
        return None, text
    change = value / base - 1.0
    return change, f"{text}, {change:+.0%}" if change else text
