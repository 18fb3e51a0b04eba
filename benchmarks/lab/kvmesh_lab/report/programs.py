"""What a run was for its programs: when they were done, how long they waited, what they shared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kvmesh_lab.report.outcome import Distribution, RequestOutcome, distribution, percentile

STEADY_SHARE: Final = 0.9
"""Turns finished a second are counted until this share of them has ended: the pauses of the last
programs would only make the run longer."""


class ProgramFacts(msgspec.Struct, frozen=True):
    """What the trace says of programs: the turns of each, and by the index of a request how many
    tokens of its prompt one cache that never evicts would have had to compute.
    """

    turns: Mapping[str, int]
    new_tokens: Mapping[int, int]


class ProgramSummary(msgspec.Struct, frozen=True):
    """A program is a session with its sub-agents; `finished` are those of which every turn was
    served.

    `completion_s` is from its first request to its last answer, pauses included; `request_s` the
    sum of its requests' latencies: both of finished programs. `turns_per_s`: served, until
    `STEADY_SHARE` of them had ended. Waits are those of turns that a router held, over all turns.
    `prefill_ratio` is computed / `necessary_tokens`, those of one cache that never evicts;
    the rest was avoidable. `fairness` is Jain's index (1: even) of output tokens by second of
    `request_s`, over programs that were served.
    """

    programs: int
    finished: int
    turns: int
    turns_per_s: float
    completion_s: Distribution | None
    request_s: Distribution | None
    wait_s_mean: float
    wait_s_max: float
    waited: int
    computed_tokens: int
    necessary_tokens: int
    avoidable_tokens: int
    prefill_ratio: float
    fairness: float


def summarize_programs(
    outcomes: Sequence[RequestOutcome], facts: ProgramFacts
) -> ProgramSummary | None:
    """Return how programs fared; None for a trace without any. O(n log n)."""
    by_program: dict[str, list[RequestOutcome]] = {}
    for outcome in outcomes:
        if outcome.program:
            by_program.setdefault(outcome.program, []).append(outcome)
    if not by_program:
        return None
    turns = [one for members in by_program.values() for one in members if not one.error]
    done = [
        members
        for name, members in by_program.items()
        if len(members) == facts.turns.get(name) and not any(one.error for one in members)
    ]
    waits = [one.held_ms / 1000.0 for members in by_program.values() for one in members]
    computed = sum(one.prompt_tokens - one.cached_tokens for one in turns)
    # Less than the engines computed is no mistake: the last token is computed in any case.
    necessary = sum(facts.new_tokens.get(one.index, 0) for one in turns)
    return ProgramSummary(
        programs=len(by_program),
        finished=len(done),
        turns=len(turns),
        turns_per_s=_steady_rate(turns),
        completion_s=distribution(map(_completion_s, done)),
        request_s=distribution(map(_request_s, done)),
        wait_s_mean=sum(waits) / len(waits),
        wait_s_max=max(waits),
        waited=sum(wait > 0.0 for wait in waits),
        computed_tokens=computed,
        necessary_tokens=necessary,
        avoidable_tokens=max(0, computed - necessary),
        prefill_ratio=computed / necessary if necessary else 1.0,
        fairness=jain(_speeds(by_program.values())),
    )


def jain(values: Iterable[float]) -> float:
    """Return (Σx)² / (n Σx²): 1 for equal values, 1/n where one has it all; 1 for nothing at all.

    Source: Jain, Chiu, Hawe: A quantitative measure of fairness, DEC-TR-301, 1984.
    """
    found = list(values)
    squares = sum(value * value for value in found)
    return sum(found) ** 2 / (len(found) * squares) if squares else 1.0


def _speeds(programs: Iterable[Sequence[RequestOutcome]]) -> Iterable[float]:
    for members in programs:
        busy_s = _request_s(members)
        output = sum(one.output_tokens for one in members if not one.error)
        if output and busy_s:
            yield output / busy_s


def _completion_s(members: Sequence[RequestOutcome]) -> float:
    begun = min(one.sent_ms for one in members)
    return (max(one.sent_ms + one.latency_ms for one in members) - begun) / 1000.0


def _request_s(members: Sequence[RequestOutcome]) -> float:
    return sum(one.latency_ms for one in members) / 1000.0


def _steady_rate(turns: Sequence[RequestOutcome]) -> float:
    if not turns:
        return 0.0
    begun = min(one.sent_ms for one in turns)
    ends = sorted(one.sent_ms + one.latency_ms for one in turns)
    until = percentile(ends, STEADY_SHARE)
    ended = sum(end <= until for end in ends)
    return ended / max((until - begun) / 1000.0, 0.001)
