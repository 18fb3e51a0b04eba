"""A decision in words, for debug logs: a line a candidate, and who was chosen."""

from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.core.cost.formulas import formula_line
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.routing.decision import Decision

MOST_SHOWN: Final = 16
"""Candidates that are shown, the chosen one and the best others; the rest are counted."""


class DecisionLines(msgspec.Struct, frozen=True):
    """The lines of one decision; `formulas` has one a candidate shown, the chosen one first.

    `overlaps` are cached blocks of the prompt, `loads` blocks in use and queued for prefill,
    `finals` the formula's values. Each says how many more there were.
    """

    formulas: tuple[str, ...]
    overlaps: str
    loads: str
    finals: str
    selected: str


def decision_lines(decision: Decision, most: int = MOST_SHOWN) -> DecisionLines:
    """Return the lines for the chosen and the best other candidates, `most` (at least 1) in all.

    O(candidates log candidates); those that were not weighed one by one are only counted.
    """
    cost, fleet, weights = decision.cost, decision.fleet, decision.weights
    chosen = decision.chosen
    weighed = sorted(
        zip(decision.scores, decision.candidates, strict=True),
        key=lambda one: (one[1] is not chosen, -one[0] if cost.maximise else one[0]),
    )
    shown = weighed[:most]
    more = decision.considered - len(shown)

    def each(name: str, text: Callable[[float, Candidate], str]) -> str:
        parts = [f"{one.worker}: {text(score, one)}" for score, one in shown]
        parts += [f"and {more} more"] if more > 0 else []
        return f"{name}: {{{', '.join(parts)}}}"

    return DecisionLines(
        formulas=tuple(formula_line(cost, score, one, fleet, weights) for score, one in shown),
        overlaps=each("KV overlap scores", lambda _, one: f"{one.overlap_blocks} blocks"),
        loads=each("Load scores", lambda _, one: f"{_load_blocks(one):.1f} blocks"),
        finals=each("Final scores", lambda score, _: f"{score:.3f}"),
        selected=f"Selected {decision.worker} ({_why(decision)})",
    )


def _load_blocks(one: Candidate) -> float:
    return one.active_blocks + one.prefill_tokens / one.block_size


def _why(decision: Decision) -> str:
    """Return the score of the chosen one, and why it was chosen if not for that."""
    score, scores = decision.score, decision.scores
    if decision.kept:
        return f"kept by its session, score: {score:.3f}"
    if not decision.by_cache:
        return f"by {decision.policy}, score: {score:.3f}"
    best = max(scores) if decision.cost.maximise else min(scores)
    if score == best:
        return f"best score: {score:.3f}"
    return f"score: {score:.3f}, best score: {best:.3f}"
