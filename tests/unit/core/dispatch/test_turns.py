from math import inf
from typing import Any

import pytest

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.dispatch.turns import Turns, turn_served
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.turn import TurnEnd
from kvmesh.core.routing.decision import RouteRequest
from tests.unit.core.programs.program_cases import (
    W1,
    W2,
    SmallFleet,
    key,
    make_governor,
    make_turn,
)


def turns_of(**options: object) -> Turns:
    return Turns(make_governor(SmallFleet(w1=10_000, w2=10_000), **options))


def play(turns: Turns, tokens: int, computed: int, *, agent: str = "a", at: object = W1) -> None:
    turn = make_turn(agent, tokens)
    turns.begin(turn, at, 1.0)  # type: ignore[arg-type]  # a worker
    turns.end(turn, TurnEnd(served=True, worker=at, computed_tokens=computed), 2.0)  # type: ignore[arg-type]


def lost(turns: Turns) -> int:
    assert turns.governor is not None
    return turns.governor.statistics().lost_tokens


@pytest.mark.parametrize(
    ("tokens", "computed", "gone"),
    [(1200, 200, 0), (1200, 240, 0), (1200, 700, 500), (1200, 1200, 1000), (900, 900, 0)],
)
def test_what_is_computed_again_of_a_context_was_lost(
    tokens: int, computed: int, gone: int
) -> None:
    turns = turns_of()
    play(turns, 1000, 1000)

    play(turns, tokens, computed)

    assert lost(turns) == gone


def test_a_context_that_was_elsewhere_was_not_lost() -> None:
    turns = turns_of()
    play(turns, 1000, 1000, at=W2)

    play(turns, 1200, 1200)

    assert lost(turns) == 0


def test_no_more_prompts_are_remembered_than_agents_followed() -> None:
    turns = turns_of(max_agents=1)
    play(turns, 1000, 1000)
    play(turns, 1000, 1000, agent="b")

    play(turns, 1200, 1200)

    assert lost(turns) == 0


def test_a_turn_in_vain_teaches_nothing() -> None:
    turns = turns_of()
    turn = make_turn("a", 1000)
    turns.begin(turn, W1, 1.0)
    turns.end(turn, TurnEnd(served=False, worker=W1), 2.0)

    play(turns, 1200, 1200)

    assert lost(turns) == 0


def test_where_there_is_no_governor_nothing_is_kept() -> None:
    turns = Turns(None)

    play(turns, 1000, 1000)

    assert not turns.may_hold(make_turn("a", 10**6), 3.0)
    assert turns.passes(key("a"), 10**6, 3.0)


def test_what_cannot_wait_need_not_be_asked_about() -> None:
    turns = turns_of()
    play(turns, 9000, 9000, agent="b")
    play(turns, 9000, 9000, agent="c", at=W2)

    assert turns.may_hold(make_turn("a", 9000), 3.0)
    assert not turns.may_hold(make_turn("a", 9000, patience_s=0.0), 3.0)


@pytest.mark.parametrize(
    ("usage", "computed", "output"),
    [
        (None, 300, 7),
        (Usage(prompt_tokens=900), 300, 7),
        (Usage(prompt_tokens=900, completion_tokens=5, cached_tokens=800), 100, 5),
        (Usage(prompt_tokens=0, cached_tokens=10), 0, 7),
    ],
)
def test_the_engines_word_counts_before_what_was_predicted(
    usage: Usage | None, computed: int, output: int
) -> None:
    end = turn_served(W1, usage, 7, 300)

    assert (end.served, end.computed_tokens, end.output_tokens) == (True, computed, output)


def test_why_an_answer_ended_is_told() -> None:
    end = turn_served(W1, Usage(stop="tool", tool="Bash"), 7, 300)

    assert (end.stop, end.tool) == ("tool", "Bash")


def prompt_of(blocks: int, request_id: str = "r", **fields: Any) -> RouteRequest:
    """Return a request of so many blocks of 16 tokens, each a prefix of longer ones."""
    hashes = BlockHashes.of(range(1, blocks + 1), 16)
    return RouteRequest(request_id=request_id, hashes=hashes, prompt_tokens=16 * blocks, **fields)


def test_an_agent_that_nobody_names_is_followed_by_its_prompts() -> None:
    turns = turns_of()

    first = turns.follow(prompt_of(300, "a"), 1.0)
    second = turns.follow(prompt_of(310, "b", timeout_s=8.0, priority=3, tenant=""), 2.0)
    third = turns.of_chain("c", prompt_of(320).hashes, "", 5120, 3.0)

    assert first.turn is None
    assert second.turn is not None
    assert second.turn.client == "chain"
    assert (second.turn.prompt_tokens, second.turn.priority) == (4960, 3)
    assert second.turn.patience_s == 4.0
    assert third is not None
    assert third.agent == third.program == second.turn.agent
    assert third.patience_s == inf


def test_where_no_turns_are_taken_nobody_is_followed() -> None:
    turns = Turns(None)

    for blocks in (300, 310):
        assert turns.follow(prompt_of(blocks), 1.0).turn is None
    assert len(turns.chains) == 0
    assert turns.may_place("", 10**6, 1.0)


def test_a_long_prompt_without_a_name_is_placed_while_there_is_room_for_it() -> None:
    turns = turns_of()

    assert turns.may_place("", 50_000, 1.0)
    play(turns, 9000, 9000)
    play(turns, 9000, 9000, agent="b", at=W2)

    assert not turns.may_place("", 5000, 3.0)
    assert not turns.may_place(key("new"), 5000, 3.0)
    assert turns.may_place("", 1000, 3.0)
