"""A formula of one's own tried before it decides anything."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import median
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import Cost
from kvmesh.core.cost.own import FormulaTimeout, Guard, checked, describe
from kvmesh.core.cost.terms import Candidate, Fleet, survey
from kvmesh.core.cost.weights import Weights
from kvmesh.errors import ConfigError

MOST_US: Final = 100.0
"""What a candidate may take, in the median."""

LIMIT_S: Final = 2.0
"""One fleet of the trial may take so long."""

FLEET: Final = 8
_SIZE: Final = 16
_PROMPTS: Final = (0, 1, 1600, 10_000_000)
_SHARES: Final = (0.0, 0.5, 1.0)
_LOADS: Final = (0, 1, 50, 1_000_000)
_USAGES: Final = (0.0, 0.5, 1.0)


def trial_candidates() -> list[Candidate]:
    """Return workers of every kind there may be, from idle and empty to hopeless."""
    return [
        _candidate(number, *corner)
        for number, corner in enumerate(product(_PROMPTS, _SHARES, _LOADS, _USAGES))
    ]


def trial_weights(cost: Cost) -> Iterator[tuple[str, Weights]]:
    """Yield weights to try: the defaults, each at either end of its range, all at either end."""
    table = cost.weights
    yield "its default weights", table.default
    for spec in table.specs:
        for end in (spec.lower, spec.upper):
            yield f"{spec.name}={end:g}", table.make({spec.name: end}, cost.name)
    if table.specs:
        least = {spec.name: spec.lower for spec in table.specs}
        most = {spec.name: spec.upper for spec in table.specs}
        yield "all weights at their least", table.make(least, cost.name)
        yield "all weights at their most", table.make(most, cost.name)


def check_formula(cost: Cost, guard: Guard, timer: Callable[[], float]) -> None:
    """Try a formula on fleets of all kinds.

    Raises `ConfigError` for one that fails, gives no finite number, gives another the second time
    or in another order, or takes longer than `MOST_US` in the median; `timer` tells seconds.
    """
    candidates = trial_candidates()
    groups = [candidates[at : at + FLEET] for at in range(0, len(candidates), FLEET)]
    groups += [[one] for one in candidates[::7]]
    taken_us: list[float] = []
    for title, weights in trial_weights(cost):
        for group in groups:
            fleet = survey(group, weights)
            began = timer()
            first = _scores(cost, group, fleet, weights, guard, title)
            if len(group) == FLEET:
                taken_us.append((timer() - began) * 1e6 / FLEET)
            again = _scores(cost, group, fleet, weights, guard, title)
            turned = _scores(cost, group[::-1], fleet, weights, guard, title)
            if first != again or first != turned[::-1]:
                raise ConfigError(
                    f"{cost.name}: gave other numbers for the same candidates the second time; it "
                    "must depend on its arguments alone"
                )
    usual_us = median(taken_us)
    if usual_us > MOST_US:
        raise ConfigError(
            f"{cost.name}: takes {usual_us:.0f} us a candidate (median), at most {MOST_US:.0f} us: "
            "each decision asks it about every worker"
        )


def _scores(
    cost: Cost, group: Sequence[Candidate], fleet: Fleet, weights: Weights, guard: Guard, title: str
) -> list[float]:
    function, tried = cost.formula.function, group[0]

    def compute() -> list[float]:
        nonlocal tried
        scores: list[float] = []
        for tried in group:
            scores.append(checked(function(tried, fleet, weights)))
        return scores

    try:
        return guard(compute, LIMIT_S)
    except KeyboardInterrupt:
        raise
    except FormulaTimeout:
        fault = f"does not end within {LIMIT_S:g} s"
    except BaseException as error:  # noqa: BLE001  another's code
        fault = describe(error)
    raise ConfigError(f"{cost.name}: {fault}; tried with {title}, {fleet}, {tried}")


def _candidate(number: int, prompt: int, share: float, load: int, usage: float) -> Candidate:
    """Return one corner; what is not a corner itself follows from the load."""
    blocks = -(-prompt // _SIZE)
    overlap = int(prompt // _SIZE * share)
    odd = number % 2
    return Candidate(
        worker=WorkerId(f"w{number}"),
        block_size=_SIZE,
        prompt_tokens=prompt,
        overlap_blocks=overlap,
        request_blocks=blocks,
        uncached_tokens=prompt - overlap * _SIZE,
        prefill_tokens=load * 100 * odd,
        active_blocks=load * 10,
        decode_blocks=load * 10 + blocks,
        active_requests=load,
        outstanding_tokens=load * 200,
        waiting_requests=load // 2,
        cache_usage=usage,
        capacity_blocks=load * 20 * odd,
        cached_blocks=load * 15,
        wait_ms=load * 7.5 * odd,
        ms_per_token=0.05 * (number % 3),
        step_tokens=200.0 * odd,
        arrivals_per_ms=load / 1000.0,
        memory_wait_ms=load * 3.0 * usage,
        failure_share=0.25 * (number % 5 == 0),
        failure_ms=250.0 * (number % 5 == 0),
        lost_tokens=overlap * _SIZE * 0.5 * odd,
        slow_ms=40.0 * (number % 4 == 0),
    )
