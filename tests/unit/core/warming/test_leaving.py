"""What goes with a worker that leaves, and where it is computed before."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.warming.kept_prompts import Kept, KeptPrompts, Sent
from kvmesh.core.warming.leaving import Losses, next_home, worth_moving

SIZE = 16
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
EAGER = 1e3
"""So often a second: it will be asked for."""


def prompts(*which: int, shared: int = 32, own: int = 32) -> list[Kept[str]]:
    """Return prompts with one beginning of `shared` blocks."""
    kept = KeptPrompts[str]()
    for one in which:
        hashes = [*range(1, shared + 1), *(1000 * one + n for n in range(own))]
        kept.add(BlockHashes.of(hashes, SIZE), Sent(str(one), 1), SIZE, 0.0)
    return [*kept.prompts()]


def rates_of(kept: list[Kept[str]], rate: float = EAGER) -> dict[bytes, float]:
    return {key: rate for one in kept for key in one.marks}


@pytest.mark.parametrize(
    ("held", "stays"),
    [
        ({A: 64}, 0),
        ({A: 64, B: 32}, 32),
        ({A: 64, C: 64}, 0),
        ({A: 64, C: 32}, 0),
        ({A: 32, C: 64}, None),
        ({A: 64, B: 64}, None),
        ({A: 32, B: 64}, None),
        ({B: 64}, None),
        ({}, None),
    ],
)
def test_what_those_that_stay_have_less_of_is_worth_moving(
    held: dict[WorkerId, int], stays: int | None
) -> None:
    (prompt,) = prompts(1)

    found = worth_moving(prompt, held, A, {A, C})

    assert (None if found is None else found.held) == stays
    assert worth_moving(prompt, {**held, C: held.get(C, 0)}, C, {A, C}) is None or stays is None
    assert found is None or (found.prompt is prompt and found.elsewhere == 0)


def chosen(*scored: tuple[WorkerId, float]) -> Any:
    """Return a decision for the first of these."""
    candidates = [Candidate(worker, SIZE, 1) for worker, _ in scored]
    return SimpleNamespace(
        candidates=candidates,
        scores=[score for _, score in scored],
        score=scored[0][1],
        chosen=candidates[0],
    )


def test_of_equals_the_one_that_was_given_least_is_next() -> None:
    decision = chosen((A, 1.0), (B, 1.0), (C, 2.0))

    assert next_home(decision, {}).worker == A
    assert next_home(decision, {A: 5}).worker == B
    assert next_home(decision, {A: 5, B: 6}).worker == A
    decision.candidates = decision.scores = ()
    assert next_home(decision, {A: 5}).worker == A


def test_what_one_worker_keeps_alone_is_lost_with_it() -> None:
    kept = prompts(1, 2, 3)
    losses = Losses(rates_of(kept), (), SIZE)

    losses.add(kept[0], {A: 64})
    losses.add(kept[1], {A: 64, B: 64})
    losses.add(kept[2], {A: 32, B: 64})

    assert losses.tokens == pytest.approx({A: 64 * SIZE, B: 32 * SIZE})


def test_of_what_is_shared_each_block_counts_once() -> None:
    kept = prompts(1, 2)
    losses = Losses(rates_of(kept), (), SIZE)

    for one in kept:
        losses.add(one, {A: 64})

    assert losses.tokens == pytest.approx({A: 96 * SIZE})


def test_what_others_keep_that_leave_too_counts_for_nothing() -> None:
    (one,) = prompts(1)
    losses = Losses(rates_of([one]), (B, C), SIZE)

    losses.add(one, {A: 64, B: 64, C: 32})

    assert losses.tokens == pytest.approx({A: 64 * SIZE})


def test_what_will_not_be_asked_for_is_no_loss() -> None:
    (one,) = prompts(1)
    losses = Losses({}, (), SIZE)

    losses.add(one, {A: 64})

    assert losses.tokens == {A: 0.0}


depths = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 80))


@given(
    st.lists(depths, min_size=3, max_size=3), st.sets(st.sampled_from([A, B, C])), st.floats(0, 9)
)
def test_nobody_loses_more_than_it_keeps(
    held: list[dict[WorkerId, int]], leaving: set[WorkerId], rate: float
) -> None:
    kept = prompts(1, 2, 3)
    losses = Losses(rates_of(kept, rate), leaving, SIZE)

    for one, depth in zip(kept, held, strict=True):
        losses.add(one, depth)

    for worker in (A, B, C):
        most = sum(min(64, one.get(worker, 0)) for one in held) * SIZE
        assert 0.0 <= losses.tokens[worker] <= most
