import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.terms import Candidate, survey
from kvmesh.core.insight.decision_lines import MOST_SHOWN, decision_lines
from kvmesh.core.routing.decision import Decision


def decided(scores: list[float], chosen: int, cost: str = "prefill-decode") -> Decision:
    """Return a decision among workers that hold 10 blocks more each and are busier each."""
    candidates = tuple(
        Candidate(
            WorkerId(f"worker-{number + 1}"),
            block_size=16,
            prompt_tokens=1600,
            overlap_blocks=10 * number,
            request_blocks=100,
            prefill_tokens=160 * number,
            active_blocks=7 * number,
        )
        for number in range(len(scores))
    )
    weights = PUBLISHED.plain(cost).weights
    return Decision(
        request_id="r",
        worker=candidates[chosen].worker,
        overlap_blocks=10 * chosen,
        total_blocks=100,
        policy=cost,
        score=scores[chosen],
        considered=len(scores),
        chosen=candidates[chosen],
        candidates=candidates,
        scores=tuple(scores),
        cost=COSTS[cost],
        fleet=survey(candidates, weights),
        weights=weights,
        by_cache=True,
    )


def test_every_candidate_has_its_formula_the_chosen_one_first() -> None:
    lines = decision_lines(decided([30.0, 10.0, 20.0], 1))

    assert [line.split(" = ")[0] for line in lines.formulas] == [
        "Formula for worker-2: 10.0",
        "Formula for worker-3: 20.0",
        "Formula for worker-1: 30.0",
    ]
    assert lines.formulas[0].endswith("(cached_blocks: 10)")
    assert lines.overlaps == (
        "KV overlap scores: {worker-2: 10 blocks, worker-3: 20 blocks, worker-1: 0 blocks}"
    )
    assert lines.loads == (
        "Load scores: {worker-2: 17.0 blocks, worker-3: 34.0 blocks, worker-1: 0.0 blocks}"
    )
    assert lines.finals == "Final scores: {worker-2: 10.000, worker-3: 20.000, worker-1: 30.000}"
    assert lines.selected == "Selected worker-2 (best score: 10.000)"


def test_where_the_largest_wins_the_largest_is_the_best() -> None:
    lines = decision_lines(decided([0.1, -0.2, 0.3], 2, "overlap-load"))

    assert lines.finals == "Final scores: {worker-3: 0.300, worker-1: 0.100, worker-2: -0.200}"
    assert lines.selected == "Selected worker-3 (best score: 0.300)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kept": True}, "Selected worker-1 (kept by its session, score: 30.000)"),
        (
            {"by_cache": False, "policy": "round-robin"},
            "Selected worker-1 (by round-robin, score: 30.000)",
        ),
        ({}, "Selected worker-1 (score: 30.000, best score: 10.000)"),
    ],
)
def test_a_choice_for_another_reason_than_its_score_says_so(
    changes: dict[str, object], words: str
) -> None:
    decision = msgspec.structs.replace(decided([30.0, 10.0], 0), **changes)

    assert decision_lines(decision).selected == words


@pytest.mark.parametrize("workers", [MOST_SHOWN, MOST_SHOWN + 1, 1000])
def test_of_a_large_fleet_the_chosen_and_the_best_are_shown_and_the_rest_counted(
    workers: int,
) -> None:
    lines = decision_lines(decided([float(number) for number in range(workers)], workers - 1))

    assert len(lines.formulas) == MOST_SHOWN
    assert lines.formulas[0].startswith(f"Formula for worker-{workers}:")
    assert f"worker-{MOST_SHOWN - 1}:" in lines.formulas[-1]
    more = workers - MOST_SHOWN
    for line in (lines.overlaps, lines.loads, lines.finals):
        assert line.count(":") == MOST_SHOWN + 1
        assert line.endswith(f", and {more} more}}") == (more > 0)
