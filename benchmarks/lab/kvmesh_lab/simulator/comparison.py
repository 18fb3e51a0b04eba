"""Policies over several settings: mean and worst ratios against the first of them."""

from collections.abc import Sequence
from math import exp, log

import msgspec

from kvmesh_lab.report.outcome import RequestOutcome, distribution
from kvmesh_lab.report.statistics import RunSummary


class Cell(msgspec.Struct, frozen=True):
    """One policy in one setting. `tpot_ms_p90`: of the requests' times per further token.

    `busy_spread` is (busiest - idlest) / mean engine, in time computing while requests were sent.
    `lost` requests got no whole answer, `retried` ones were sent to a second engine, the share
    `goodput` of all was answered within the SLO.
    """

    setting: str
    policy: str
    ttft_ms_p50: float
    ttft_ms_p90: float
    ttft_ms_p99: float
    tpot_ms_p90: float
    hit_rate: float
    imbalance: float
    busy_spread: float
    lost: float = 0.0
    retried: float = 0.0
    goodput: float = 0.0


class PolicyVerdict(msgspec.Struct, frozen=True):
    """One policy over all settings. Ratios are against the baseline, geometric means; below 1 is
    better. `worst` is the largest p90 ratio and `worst_setting` where; the rest are plain means, of
    `lost` and `retried` sums.
    """

    policy: str
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p90: float
    worst: float
    worst_setting: str
    worst_of_best: float
    hit_rate: float
    imbalance: float
    busy_spread: float
    lost: float = 0.0
    retried: float = 0.0


def measure(
    setting: str,
    policy: str,
    summary: RunSummary,
    outcomes: Sequence[RequestOutcome],
    busy_spread: float,
    retried: int = 0,
) -> Cell:
    """Return the cell of one run; what nobody got counts as 0 ms."""
    ttft = summary.ttft_ms
    tpot = distribution(mean for outcome in outcomes if (mean := outcome.mean_itl_ms()) is not None)
    return Cell(
        setting=setting,
        policy=policy,
        ttft_ms_p50=ttft.p50 if ttft else 0.0,
        ttft_ms_p90=ttft.p90 if ttft else 0.0,
        ttft_ms_p99=ttft.p99 if ttft else 0.0,
        tpot_ms_p90=tpot.p90 if tpot else 0.0,
        hit_rate=summary.hit_rate,
        imbalance=summary.imbalance,
        busy_spread=busy_spread,
        lost=summary.requests - summary.succeeded,
        retried=retried,
        goodput=summary.goodput_share,
    )


def compare(cells: Sequence[Cell]) -> tuple[PolicyVerdict, ...]:
    """Return one verdict per policy, in order of appearance; the first policy is the baseline.

    Every policy must have a cell in every setting. `worst_of_best` is the largest p90 TTFT against
    the best policy of the same setting.
    """
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    table = {(cell.setting, cell.policy): cell for cell in cells}
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    best = {
        setting: min(table[setting, policy].ttft_ms_p90 for policy in policies)
        for setting in settings
    }
    verdicts: list[PolicyVerdict] = []
    for policy in policies:
        pairs = [(table[one, policy], table[one, policies[0]]) for one in settings]
        ratios = [ratio(one.ttft_ms_p90, base.ttft_ms_p90) for one, base in pairs]
        worst = max(ratios)
        count = len(pairs)
        verdict = PolicyVerdict(
            policy=policy,
            ttft_p50=geometric_mean([ratio(a.ttft_ms_p50, b.ttft_ms_p50) for a, b in pairs]),
            ttft_p90=geometric_mean(ratios),
            ttft_p99=geometric_mean([ratio(a.ttft_ms_p99, b.ttft_ms_p99) for a, b in pairs]),
            tpot_p90=geometric_mean([ratio(a.tpot_ms_p90, b.tpot_ms_p90) for a, b in pairs]),
            worst=worst,
            worst_setting=settings[ratios.index(worst)],
            worst_of_best=max(ratio(one.ttft_ms_p90, best[one.setting]) for one, _ in pairs),
            hit_rate=sum(one.hit_rate for one, _ in pairs) / count,
            imbalance=sum(one.imbalance for one, _ in pairs) / count,
            busy_spread=sum(one.busy_spread for one, _ in pairs) / count,
            lost=sum(one.lost for one, _ in pairs),
            retried=sum(one.retried for one, _ in pairs),
        )
        verdicts.append(verdict)
    return tuple(verdicts)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of positive ratios."""
    return exp(sum(map(log, ratios)) / len(ratios))


def ratio(value: float, base: float) -> float:
    """Return value / base; 1 where either is nothing, so that it decides nothing."""
    return value / base if value > 0.0 and base > 0.0 else 1.0
