"""A policy and its change as JSON: what is in force, both arms, what was decided and why."""

from collections.abc import Iterable, Mapping

import msgspec

from kvmesh.core.cost.arm_tally import Tally, Times, add_tallies
from kvmesh.core.cost.weights import WeightSpec
from kvmesh.core.insight.mark_log import Mark
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.rollout_state import Phase, PolicyUpdate, RolloutState, Step
from kvmesh.core.insight.trace_ring import TraceRingStatistics
from kvmesh.core.insight.tuning_acts import TunerStatus

SLOWEST = 0.9
_DIGITS = 3


class TimesRow(msgspec.Struct, frozen=True):
    """Times in ms: their geometric mean, and edges below which half and nine tenths lie."""

    mean_ms: float
    p50_ms: float
    p90_ms: float


class ArmRow(msgspec.Struct, frozen=True):
    """One arm over all replicas and its windows: `requests` that ended, those that failed, the time
    to the first token and per token behind it; None before any.
    """

    arm: str
    policy: str
    requests: int
    errors: int
    ttft: TimesRow | None
    tpot: TimesRow | None


class ChangeRow(msgspec.Struct, frozen=True):
    """One change, begun `by` a replica `at` a Unix time, and each step of it."""

    at: float
    by: str
    policy: str
    baseline: str
    phase: Phase
    steps: tuple[Step, ...]


class PolicyRow(msgspec.Struct, frozen=True):
    """The policy of a bucket as one replica knows it.

    `policy` decides whatever is not the `candidate`'s: while one is on trial it gets the `share` of
    the time, `window` counts from 1 and is of the arm `turn`, `verdict` says what the `arms` show
    so far and `simulation` what a simulator made of both, "" while it was not asked at this
    replica. `refused`: why this replica cannot follow its siblings. `history` has the newest change
    first.
    """

    bucket: str
    policy: str
    candidate: str = ""
    share: float = 0.0
    window: int = 0
    turn: str = ""
    verdict: str = ""
    simulation: str = ""
    arms: tuple[ArmRow, ...] = ()
    refused: str = ""
    history: tuple[ChangeRow, ...] = ()


def view_policy(bucket: str, rollout: Rollout, siblings: Mapping[str, PolicyUpdate]) -> PolicyRow:
    """Return what a replica with these siblings knows."""
    state, verdict = rollout.state, rollout.verdict(siblings)
    history = tuple(map(_change, rollout.history()))
    row = PolicyRow(bucket, str(rollout.spec), refused=rollout.refused, history=history)
    if state is None or verdict is None:
        return row
    baseline, candidate = rollout.seen(siblings)
    return msgspec.structs.replace(
        row,
        candidate=str(state.change.policy),
        share=state.share,
        window=state.stage + 1,
        turn=state.arm_of(state.stage),
        verdict=f"{verdict.kind}: {verdict.reason}",
        simulation="" if rollout.simulated is None else rollout.simulated.reason,
        arms=(
            _arm("baseline", str(state.baseline), add_tallies(baseline)),
            _arm("candidate", str(state.change.policy), add_tallies(candidate)),
        ),
    )


def merge_policies(rows: Iterable[PolicyRow]) -> list[PolicyRow]:
    """Return one row a bucket, of the replica that knows the newest step; sorted by bucket."""
    best: dict[str, PolicyRow] = {}
    for row in rows:
        known = best.get(row.bucket)
        if known is None or _newest_step_s(row) > _newest_step_s(known):
            best[row.bucket] = row
    return [best[bucket] for bucket in sorted(best)]


def policy_marks(row: PolicyRow, since: float) -> list[Mark]:
    """Return the beginning and the end of each change since a Unix time."""
    marks = []
    for change in row.history:
        words = {"running": "on trial", "done": "kept", "returned": "returned from"}
        ends = change.steps[-1:] if change.phase != "running" else ()
        found = [(change.at, "running"), *((one.at, change.phase) for one in ends)]
        marks += [
            Mark(at, "policy", change.by, f"{change.policy} {words[phase]}", row.bucket)
            for at, phase in found
            if at >= since
        ]
    return marks


def _newest_step_s(row: PolicyRow) -> float:
    return row.history[0].steps[-1].at if row.history and row.history[0].steps else 0.0


def _change(state: RolloutState) -> ChangeRow:
    policy, baseline = str(state.change.policy), str(state.baseline)
    return ChangeRow(state.at, state.by, policy, baseline, state.phase, state.steps)


def _arm(name: str, policy: str, tally: Tally) -> ArmRow:
    return ArmRow(
        name, policy, tally.requests, tally.errors, _times(tally.ttft), _times(tally.tpot)
    )


def _times(times: Times) -> TimesRow | None:
    if not times.count:
        return None
    shown = (times.mean_ms(), times.quantile_ms(0.5), times.quantile_ms(SLOWEST))
    return TimesRow(*(round(one, _DIGITS) for one in shown))


class TuningRow(msgspec.Struct, frozen=True):
    """The tuner of one replica; times of its steps are Unix times."""

    bucket: str
    router: str
    tuner: TunerStatus
    trace: TraceRingStatistics


DEFAULTS = PolicyChange(PolicySpec("-"))


class BoundsWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`Bounds` as a PUT names them."""

    ttft_ratio: float = DEFAULTS.bounds.ttft_ratio
    tpot_ratio: float = DEFAULTS.bounds.tpot_ratio
    error_margin: float = DEFAULTS.bounds.error_margin


class PolicyWish(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"give_up": "return"}
):
    """The body of a PUT: a policy and how it comes, or `return` alone.

    Weights that are not named are at the formula's defaults, the rest at `PolicyChange`'s.
    """

    formula: str = ""
    weights: dict[str, float] = {}
    at_once: bool = False
    bounds: BoundsWish = BoundsWish()
    min_requests: int = DEFAULTS.min_requests
    window_s: float = DEFAULTS.window_s
    max_s: float = DEFAULTS.max_s
    give_up: bool = False


class PolicyView(msgspec.Struct, frozen=True):
    """The policy in force and its changes, at this replica; `replicas` follow within seconds.

    `formulas` are those there are, with the weights of each; `change` is the last one as it was
    asked for.
    """

    mode: str
    formula: str
    weights: dict[str, float]
    formulas: dict[str, tuple[WeightSpec, ...]]
    replicas: list[str]
    change: PolicyChange | None
    trial: PolicyRow
