"""Whether a candidate may go on: two arms compared, so that chance alone does not decide."""

from math import inf, log, sqrt
from typing import Final, Literal

import msgspec

from kvmesh.core.cost.arm_tally import MOST_BINS, PER_OCTAVE, Tally, Times
from kvmesh.core.insight.policy_change import LEAST_REQUESTS, Bounds

SIGMAS: Final = 4.0
"""Standard errors by which a mean must lie beyond its bound: one look in 30,000 errs, and stages
are looked at each second.
"""

DOUBT: Final = log(1e5)
"""A count must be less likely than 1 in 100,000 within the bound."""

TAIL: Final = 0.1
"""The slowest share of the requests, compared by itself: means hide it."""

_WILSON_Z: Final = 2.0


class Verdict(msgspec.Struct, frozen=True):
    """`worse`: the candidate is beyond a bound. `ahead`: it may go on. Else more must be seen."""

    kind: Literal["worse", "ahead", "open"]
    reason: str


def compare(baseline: Tally, candidate: Tally, bounds: Bounds, min_requests: int) -> Verdict:
    """Return what the arms show so far. `min_requests` of each are needed to go on; errors, and
    times far beyond the bound, show sooner.
    """
    found = _errors(baseline, candidate, bounds.error_margin)
    for name, known, new, ratio in (
        ("time to first token", baseline.ttft, candidate.ttft, bounds.ttft_ratio),
        ("time per token", baseline.tpot, candidate.tpot, bounds.tpot_ratio),
    ):
        found = found or _mean(name, known, new, ratio) or _tail(name, known, new, ratio)
    if found:
        return Verdict("worse", found)
    fewest = min(baseline.requests, candidate.requests)
    if fewest < min_requests:
        return Verdict("open", f"{fewest} of {min_requests} requests seen of the rarer arm")
    for name, known, new, ratio in (
        ("time to first token", baseline.ttft, candidate.ttft, bounds.ttft_ratio),
        ("time per token", baseline.tpot, candidate.tpot, bounds.tpot_ratio),
    ):
        if new.mean_ms() > ratio * known.mean_ms() > 0.0:
            times = new.mean_ms() / known.mean_ms()
            return Verdict("open", f"{name} {times:.2f} of the baseline's, which may be chance")
    return Verdict("ahead", f"{fewest} requests of the rarer arm, within the bounds")


def _errors(baseline: Tally, candidate: Tally, margin: float) -> str:
    """Return in words that the candidate fails more often; "" when that may be chance."""
    usual = min(1.0, wilson_upper(baseline.errors, baseline.requests) + margin)
    if not is_unlikely(candidate.errors, candidate.requests, usual):
        return ""
    return (
        f"{candidate.errors} of {candidate.requests} requests failed,"
        f" {baseline.errors} of {baseline.requests} by the baseline"
    )


def _mean(name: str, baseline: Times, candidate: Times, ratio: float) -> str:
    """Return in words that the geometric mean is beyond `ratio`; "" when that may be chance.

    Welch's test of the logarithms' means.
    """
    if min(baseline.count, candidate.count) < LEAST_REQUESTS:
        return ""
    spread = sqrt(
        baseline.log_variance() / baseline.count + candidate.log_variance() / candidate.count
    )
    difference = candidate.log_sum / candidate.count - baseline.log_sum / baseline.count
    if difference - log(ratio) <= SIGMAS * spread:
        return ""
    return (
        f"{name} {candidate.mean_ms():.1f} ms against {baseline.mean_ms():.1f} ms, beyond"
        f" {ratio:g} times ({candidate.count} and {baseline.count} requests)"
    )


def _tail(name: str, baseline: Times, candidate: Times, ratio: float) -> str:
    """Return in words that more than the slowest tenth are slower than the baseline's slowest
    tenth times `ratio`; "" when that may be chance.

    Were each time of the baseline multiplied by at most `ratio`, no more could be.
    """
    if baseline.count < LEAST_REQUESTS:
        return ""
    edge = baseline.bin_of(1.0 - TAIL)
    steps = 0
    while 2.0 ** (steps / PER_OCTAVE) < ratio:
        steps += 1
    if edge + steps >= MOST_BINS - 1:
        return ""
    slow = candidate.above(edge + steps)
    usual = max(TAIL, wilson_upper(baseline.above(edge), baseline.count))
    if not is_unlikely(slow, candidate.count, usual):
        return ""
    return (
        f"{name} of the slowest tenth {candidate.quantile_ms(1.0 - TAIL):.1f} ms against"
        f" {baseline.quantile_ms(1.0 - TAIL):.1f} ms, beyond {ratio:g} times"
        f" ({candidate.count} and {baseline.count} requests)"
    )


def wilson_upper(hits: int, of: int) -> float:
    """Return the share that `hits` of `of` may stand for at most: Wilson's interval, 2 sigmas."""
    if not of:
        return 1.0
    square, share = _WILSON_Z**2, hits / of
    middle = share + square / (2 * of)
    reach = _WILSON_Z * sqrt(share * (1 - share) / of + square / (4 * of * of))
    return min(1.0, (middle + reach) / (1 + square / of))


def is_unlikely(hits: int, of: int, share: float) -> bool:
    """Return whether `hits` of `of` are too many for a `share`: Chernoff's bound of the binomial
    tail is below 1 in 100,000.
    """
    return bool(of) and hits / of > share and of * _divergence(hits / of, share) > DOUBT


def _divergence(seen: float, share: float) -> float:
    """Return Kullback and Leibler's divergence of two coins, `seen` > `share`."""
    if share <= 0.0:
        return inf
    rest = (1.0 - seen) * log((1.0 - seen) / (1.0 - share)) if seen < 1.0 else 0.0
    return seen * log(seen / share) + rest
