from typing import Any

import pytest

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.dispatch.turns import Turns, turn_served
from kvmesh.core.engines.sse import Usage
from kvmesh.core.programs.turn import Turn, TurnEnd
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
    return Turns(make_governor(SmallFleet(w1=10_000, w2=10_000), **options), 16)


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


def test_no_more_prompts_are_remembered_than_agents_followed() -> None:
    turns = turns_of(max_agents=1)
    play(turns, 1000, 1000)
    play(turns, 1000, 1000, agent="b")

    play(turns, 1200, 1200)

    assert lost(turns) == 0


def test_where_there_is_no_governor_nothing_is_kept() -> None:
    turns = Turns(None, 16)

    play(turns, 1000, 1000)

    assert not turns.may_hold(make_turn("a", 10**6), 3.0)


def test_a_turn_that_is_begun_as_if_it_had_been_asked_about_waits_for_nothing() -> None:
    turns = turns_of()
    play(turns, 9000, 9000, agent="b")
    play(turns, 9000, 9000, agent="c", at=W2)
    assert turns.governor is not None

    turns.begin(make_turn("a", 9000), W1, 3.0, asked=True)

    agent = turns.governor.table.find(key("a"))
    assert agent is not None
    assert agent.running == 1
    assert not turns.governor.waiting


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


def prompt(blocks: int, name: str = "q", **more: Any) -> RouteRequest:
    return RouteRequest(name, BlockHashes.of(range(1, blocks + 1), 16), 16 * blocks, **more)


def test_a_prompt_that_goes_on_from_another_is_its_agents_turn() -> None:
    turns = turns_of()

    first, again = turns.follow(prompt(300), 1.0), turns.follow(prompt(301), 2.0)
    looked = turns.check(prompt(302, "r", tenant=""), 3.0)

    assert first.turn is None
    assert again.turn is not None
    assert looked is not None
    assert (again.turn.client, again.turn.prompt_tokens) == ("chain", 16 * 301)
    assert (looked.agent, looked.request_id) == (again.turn.agent, "r")


def test_a_placed_prompt_is_followed_as_well() -> None:
    turns = turns_of()
    requests = [prompt(300), prompt(301)]

    reported = [turns.follow_placed(one, "", 0, 1.0) for one in requests]  # type: ignore[arg-type]
    gone = turns.follow_placed(Gone(), "", 0, 2.0)  # type: ignore[arg-type]

    assert reported[0] is None
    assert reported[1] is not None
    assert reported[1].client == "chain"
    assert gone is None


class Gone:
    """A placed request whose first token came."""

    request_id = "q"
    hashes = None
    prompt_tokens = 1


def test_a_turn_that_a_client_names_is_not_looked_for() -> None:
    turns = turns_of()
    turns.follow(prompt(300), 1.0)
    named = prompt(301, turn=make_turn("a", 16 * 301))

    assert turns.follow(named, 2.0) is named
    assert turns.check(named, 2.0) is named.turn


class _Placement:
    """Who is told of ends, and what."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, TurnEnd, float]] = []

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        self.ends.append((turn.request_id, end, now))


@pytest.mark.parametrize("served", [True, False])
def test_the_end_of_a_turn_is_told_to_who_touches_contexts(served: bool) -> None:
    turns, reported = turns_of(), _Placement()
    turns.touches = reported  # type: ignore[assignment]  # nothing else is asked of it
    turn, end = make_turn("a", 1000), TurnEnd(served=served, worker=W1)
    turns.begin(turn, W1, 1.0)

    turns.end(turn, end, 2.0)

    assert reported.ends == [("a/1", end, 2.0)]
