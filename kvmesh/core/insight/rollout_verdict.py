"""Whether a candidate may go on: two arms compared, so that chance alone does not decide."""

from collections.abc import Sequence
from math import inf, log, sqrt
from typing import Final, Literal

import msgspec

from kvmesh.core.cost.arm_tally import MOST_BINS, PER_OCTAVE, Tally, Times, add_tallies, add_times
from kvmesh.core.insight.policy_change import LEAST_REQUESTS, Bounds

SIGMAS: Final = 4.0
"""Standard errors by which a mean must lie beyond its bound: one look in 30,000 errs, and windows
are looked at each second.
"""

SURE: Final = 2.0
"""Standard errors by which it must lie within to go on: windows end seldom."""

PRIOR_NOISE: Final = 0.1
PRIOR_WINDOWS: Final = 4
"""Before windows show how much they differ without a cause, it is taken to be 10 %: that counts as
so many windows.
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


def compare(
    baseline: Sequence[Tally], candidate: Sequence[Tally], bounds: Bounds, min_requests: int
) -> Verdict:
    """Return what the windows of both arms show so far. `min_requests` of each are needed to go on;
    errors, and times far beyond the bound, show sooner.
    """
    known, new = add_tallies(baseline), add_tallies(candidate)
    found = _errors(known, new, bounds.error_margin)
    open_ = ""
    for name, old, tried, ratio in (
        (
            "time to first token",
            [one.ttft for one in baseline],
            [one.ttft for one in candidate],
            bounds.ttft_ratio,
        ),
        (
            "time per token",
            [one.tpot for one in baseline],
            [one.tpot for one in candidate],
            bounds.tpot_ratio,
        ),
    ):
        mean, differs = _mean(name, old, tried, ratio)
        found = found or (mean if differs else "") or _tail(name, old, tried, ratio)
        open_ = open_ or ("" if differs else mean)
    if found:
        return Verdict("worse", found)
    fewest = min(known.requests, new.requests)
    if fewest < min_requests:
        return Verdict("open", f"{fewest} of {min_requests} requests seen of the rarer arm")
    if open_:
        return Verdict("open", open_)
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


def _mean(
    name: str, baseline: Sequence[Times], candidate: Sequence[Times], ratio: float
) -> tuple[str, bool]:
    """Return in words that the geometric mean may be beyond `ratio`, "" when it is sure to be
    within, and whether it is sure to be beyond.

    Requests of one window share its load and its queues: what windows of the same arm differ by is
    noise of its own, which more requests a window do not lessen.
    """
    known, new = add_times(baseline), add_times(candidate)
    if min(known.count, new.count) < LEAST_REQUESTS:
        return "", False
    noise, windows, parts = PRIOR_WINDOWS * PRIOR_NOISE**2, PRIOR_WINDOWS - 2, 0.0
    spread = 0.0
    for side, whole in ((baseline, known), (candidate, new)):
        mean = whole.log_sum / whole.count
        seen = [one for one in side if one.count]
        noise += sum((one.log_sum / one.count - mean) ** 2 for one in seen)
        windows += len(seen)
        parts += sum((one.count / whole.count) ** 2 for one in seen)
        spread += whole.log_variance() / whole.count
    error = sqrt(spread + noise / windows * parts)
    beyond = new.log_sum / new.count - known.log_sum / known.count - log(ratio)
    if beyond <= -SURE * error:
        return "", False
    times = new.mean_ms() / known.mean_ms()
    if beyond <= SIGMAS * error:
        return f"{name} {times:.2f} (± {error:.0%}) of the baseline's, which may be chance", False
    return (
        f"{name} {new.mean_ms():.1f} ms against {known.mean_ms():.1f} ms, beyond {ratio:g} times"
        f" ({new.count} and {known.count} requests)"
    ), True


def _tail(name: str, baseline: Sequence[Times], candidate: Sequence[Times], ratio: float) -> str:
    """Return in words that more than the slowest tenth are slower than the baseline's slowest
    tenth times `ratio`, in more requests than in any window of the baseline; "" when that may be
    chance.

    Were each time of the baseline multiplied by at most `ratio`, no more could be.
    """
    known, new = add_times(baseline), add_times(candidate)
    if known.count < LEAST_REQUESTS:
        return ""
    edge = known.bin_of(1.0 - TAIL)
    steps = 0
    while 2.0 ** (steps / PER_OCTAVE) < ratio:
        steps += 1
    if edge + steps >= MOST_BINS - 1:
        return ""
    slow = new.above(edge + steps)
    counted = [one for one in baseline if one.count >= LEAST_REQUESTS]
    usual = max([TAIL, *(wilson_upper(one.above(edge), one.count) for one in counted)])
    if not is_unlikely(slow, new.count, usual):
        return ""
    return (
        f"{name} of the slowest tenth {new.quantile_ms(1.0 - TAIL):.1f} ms against"
        f" {known.quantile_ms(1.0 - TAIL):.1f} ms, beyond {ratio:g} times"
        f" ({new.count} and {known.count} requests)"
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
