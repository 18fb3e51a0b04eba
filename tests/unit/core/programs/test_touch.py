"""Which contexts are touched, when, and when it is left alone."""

import random
from math import inf

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.table import Agent, ProgramTable
from kvmesh.core.programs.touch import (
    Touch,
    Touches,
    TouchOptions,
    TouchStatistics,
    chance_of_return,
)
from kvmesh.core.programs.turn import Stop, Turn, TurnEnd
from tests.unit.core.programs.program_cases import W1, W2, SmallFleet, key, make_turn

C = 100_000


def no_tokens(agent: str, worker: WorkerId) -> int:
    """Say that a worker holds all of an agent's prompt."""
    del agent, worker
    return 0


class Engine:
    """A worker of C tokens, agents that take turns at it, and who touches their contexts."""

    def __init__(self, tokens: int = C, **options: object) -> None:
        self.table = ProgramTable(100, 100)
        self.fleet = SmallFleet(w1=tokens)
        self.fleet.per_token_ms = 0.1
        self.touches = Touches(TouchOptions(**options), self.table, self.fleet)  # type: ignore[arg-type]  # any option

    def turn(
        self, name: str, tokens: int, computed: int, now: float, stop: Stop = "tool", **more: object
    ) -> Turn:
        turn = make_turn(name, tokens, **more)  # type: ignore[arg-type]  # any field
        agent, _ = self.table.note(turn, now)
        assert agent is not None
        agent.worker, agent.stop = W1, stop
        self.touches.chosen(turn, W1)
        end = TurnEnd(served=True, worker=W1, output_tokens=0, computed_tokens=computed, stop=stop)
        self.touches.ended(turn, end, now)
        agent.enter("ended" if turn.final else "paused", now)
        return turn

    def plan(self, now: float) -> list[str]:
        return [one.agent for one in self.touches.plan(now, no_tokens)]


def test_a_context_that_would_go_before_that_of_an_ended_program_is_touched_once() -> None:
    engine = Engine()
    engine.turn("waits", 30_000, 30_000, 0.0)
    engine.turn("gone", 40_000, 40_000, 1.0, final=True)

    (touch,) = engine.touches.plan(2.0, no_tokens)

    assert (touch, engine.plan(3.0)) == (Touch(key("waits"), W1, 30_000), [])
    engine.touches.done(touch, 0, 3.0)
    assert engine.plan(100.0) == []
    assert engine.touches.statistics() == TouchStatistics(1, 0, 0)


def test_the_end_of_a_turn_has_its_worker_looked_at_again() -> None:
    engine = Engine()
    engine.turn("waits", 30_000, 30_000, 0.0)
    last = engine.turn("last", 10_000, 10_000, 1.0, final=True)
    assert engine.plan(2.0) == []

    end = TurnEnd(served=True, worker=W1, output_tokens=30_000, computed_tokens=0, stop="end")
    engine.touches.ended(last, end, 3.0)

    assert engine.plan(4.0) == [key("waits")]


def test_the_more_is_written_the_sooner_an_agent_must_come_back() -> None:
    lives: list[float] = []

    def chance(_agent: Agent, _now: float, life_s: float) -> float:
        lives.append(life_s)
        return 0.0

    engine = Engine()
    engine.touches = Touches(TouchOptions(), engine.table, engine.fleet, chance)
    engine.turn("waits", 30_000, 30_000, 0.0)
    engine.touches.wrote(W1, 30_000, 0.0)
    assert engine.plan(0.0) == []

    assert lives == [C / (60_000 / 600.0)]


def test_what_would_still_fit_behind_half_a_cache_of_others_is_left_alone() -> None:
    engine = Engine()
    engine.turn("waits", 20_000, 20_000, 0.0)
    engine.turn("gone", 29_000, 29_000, 1.0, final=True)

    assert engine.plan(2.0) == []


def test_nothing_is_touched_where_all_that_is_newer_is_worth_as_much() -> None:
    engine = Engine()
    for number in range(3):
        engine.turn(f"waits{number}", 30_000, 30_000, 0.0)

    assert engine.plan(1.0) == []


def test_the_longest_unused_comes_first_then_the_next_after_a_while() -> None:
    engine = Engine()
    engine.turn("first", 20_000, 20_000, 0.0)
    engine.turn("second", 20_000, 20_000, 1.0)
    engine.touches.wrote(W1, 50_000, 1.0)

    (touch,) = engine.touches.plan(2.0, no_tokens)
    assert (touch.agent, engine.plan(2.5)) == (key("first"), [])
    engine.touches.done(touch, 1000, 3.0)

    # A step of 25 ms and 1,000 tokens at 0.1 ms are 2 % of 6.25 s.
    assert (engine.plan(9.2), engine.plan(9.3)) == ([], [key("second")])
    assert engine.touches.statistics() == TouchStatistics(1, 0, 1000)


def test_a_touch_that_failed_changes_nothing_but_the_time_of_the_next() -> None:
    engine = Engine()
    engine.turn("waits", 30_000, 30_000, 0.0)
    engine.touches.wrote(W1, 40_000, 1.0)
    (touch,) = engine.touches.plan(2.0, no_tokens)

    engine.touches.done(touch, None, 3.0)
    engine.touches.wrote(W1, 1, 1.0)

    assert (engine.plan(4.2), engine.plan(4.3)) == ([], [key("waits")])
    assert engine.touches.statistics() == TouchStatistics(0, 1, 0)


@pytest.mark.parametrize(
    "case", ["small", "moved", "running", "cannot", "late", "evicted", "no size"]
)
def test_who_is_not_touched(case: str) -> None:
    engine = Engine(0 if case == "no size" else C, least_tokens=30_001 if case == "small" else 0)
    turn = engine.turn("waits", 30_000, 30_000, 0.0)
    agent = engine.table.find(turn.agent)
    assert agent is not None
    engine.touches.wrote(W1, 40_000, 1.0)
    if case == "moved":
        agent.worker = W2
    if case == "running":
        agent.enter("running", 1.0)
    if case == "late":
        agent.enter("paused", -1e6)

    def missing(agent: str, worker: WorkerId) -> int | None:
        assert (agent, worker) == (turn.agent, W1)
        return {"cannot": None, "evicted": 16_000}.get(case, 0)

    assert not engine.touches.plan(2.0, missing)


def test_what_failed_or_was_forgotten_or_left_is_not_counted() -> None:
    engine = Engine()
    turn = engine.turn("waits", 30_000, 30_000, 0.0)
    engine.touches.ended(turn, TurnEnd(served=False, worker=W1), 0.5)
    engine.touches.wrote(W1, 40_000, 1.0)
    engine.table.remove(turn.agent)
    assert engine.plan(2.0) == []

    engine.turn("other", 30_000, 30_000, 3.0)
    engine.touches.wrote(W1, 40_000, 1.0)
    (touch,) = engine.touches.plan(4.0, no_tokens)
    engine.touches.removed(W1)
    engine.touches.done(touch, None, 5.0)
    assert engine.plan(100.0) == []


def test_a_worker_that_is_not_usable_is_looked_at_when_it_is() -> None:
    engine = Engine()
    engine.turn("waits", 30_000, 30_000, 0.0)
    engine.touches.wrote(W1, 40_000, 1.0)
    tokens, engine.fleet.tokens = engine.fleet.tokens, {}
    assert engine.plan(1.0) == []

    engine.fleet.tokens = tokens
    assert engine.plan(2.0) == [key("waits")]


def test_dearer_prefill_is_kept_where_cheap_prefill_is_not() -> None:
    engine = Engine()
    engine.fleet.per_token_ms = 0.001
    engine.turn("waits", 30_000, 30_000, 0.0)
    engine.touches.wrote(W1, 40_000, 1.0)
    assert engine.plan(1.0) == []

    engine.fleet.per_token_ms = 0.01
    engine.touches.wrote(W1, 1, 1.0)
    assert engine.plan(1.0) == [key("waits")]


@pytest.mark.parametrize("stop", ["tool", "end", "length", ""])
def test_the_chance_of_return_is_that_of_the_published_pauses(stop: Stop) -> None:
    agent = Agent(key("a"), key("a"), "", 0.0, 0.0)
    agent.stop = stop
    median = {"tool": 9.0, "end": 218.0}.get(stop, 10.0)
    late = {"tool": 70.0, "end": 3785.0}.get(stop, 162.0)

    assert chance_of_return(agent, 0.0, median) == pytest.approx(0.5)
    assert chance_of_return(agent, 0.0, late) == pytest.approx(0.9)
    assert chance_of_return(agent, median, late - median) == pytest.approx(0.8)
    assert chance_of_return(agent, 0.0, 0.0) == 0.0
    chances = [chance_of_return(agent, now, 100.0) for now in (0.0, 1e3, 1e5, 1e9, 1e30)]
    assert all(0.0 <= one <= 1.0 for one in chances)
    assert chances[-1] == 0.0


def test_who_takes_a_turn_is_there_and_who_has_ended_never_comes() -> None:
    agent = Agent(key("a"), key("a"), "", 0.0, 0.0)
    agent.enter("running", 0.0)
    assert chance_of_return(agent, 1e9, 1.0) == 1.0
    agent.enter("waiting", 0.0)
    assert chance_of_return(agent, 1e9, 1.0) == 1.0
    agent.enter("ended", 0.0)
    assert chance_of_return(agent, 0.0, inf) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_touches_take_no_more_of_an_engine_than_said(seed: int) -> None:
    rng = random.Random(seed)
    engine, options = Engine(), TouchOptions()
    cost_s, now = 0.0, 0.0
    while now < 600.0:
        now += 0.5
        if rng.random() < 0.3:
            name, tokens = f"a{rng.randrange(8)}", rng.randrange(1000, 40_000)
            final = rng.random() < 0.3
            engine.turn(name, tokens, rng.randrange(tokens), now, final=final)
        if rng.random() < 0.3:
            engine.touches.wrote(W1, rng.randrange(20_000), now)
        for touch in engine.touches.plan(now, no_tokens):
            assert touch.worker == W1
            computed = rng.randrange(2000)
            cost_s += (options.step_ms + 0.1 * computed) / 1000.0
            engine.touches.done(touch, computed, now)

    assert 0.0 < cost_s <= options.most_share * now + ((options.step_ms + 200.0) / 1000.0)
    assert msgspec.structs.asdict(engine.touches.statistics())["failed"] == 0
