from math import inf

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.seats import Rank, Seats
from kvmesh.core.programs.table import Agent
from tests.unit.core.programs.program_cases import W1, W2


def make_agent(name: str, tokens: int, worker: WorkerId | None = W1, began_s: float = 0.0) -> Agent:
    agent = Agent(name, name, "", began_s, began_s)
    agent.tokens, agent.worker = tokens, worker
    return agent


def by_age(agent: Agent) -> Rank:
    return (1, 0, 0), agent.began_s, agent.key


def test_sums_follow_what_is_taken_moved_and_dropped() -> None:
    seats = Seats(lambda _: 1000, lambda _: 0)
    agent = make_agent("a", 600)
    seats.take(agent, inf)
    assert (seats.tokens_at(W1), seats.total_tokens, seats.crowded) == (600, 600, {W1})

    agent.worker, agent.tokens = W2, 100
    seats.take(agent, 5.0)
    assert (seats.tokens_at(W1), seats.tokens_at(W2), seats.crowded) == (0, 100, set())
    assert seats.tenants == {"": 100}

    seats.expire(5.0)
    assert (len(seats), seats.total_tokens, seats.tenants, seats.next_s()) == (0, 0, {}, inf)


def test_an_agent_at_no_worker_has_no_seat() -> None:
    seats = Seats(lambda _: 1000, lambda _: 0)

    seats.take(make_agent("a", 600, None), inf)

    assert len(seats) == 0


def test_times_that_were_moved_to_earlier_ones_are_tidied_up() -> None:
    seats = Seats(lambda _: 1000, lambda _: 0)
    agent = make_agent("a", 1)
    for second in reversed(range(1000)):
        seats.take(agent, float(second))

    assert len(seats._ends) <= 80
    seats.take(agent, 7.0)
    seats.expire(6.0)
    assert (len(seats), seats.next_s()) == (1, 7.0)


def test_the_older_keep_their_seats_and_the_youngest_yields() -> None:
    seats = Seats(lambda _: 1000, lambda _: 0)
    old, young = make_agent("old", 600, began_s=1.0), make_agent("young", 500, began_s=2.0)
    seats.take(old, inf)
    seats.take(young, inf)

    assert seats.has_room(old, W1, 1000, by_age)
    assert not seats.has_room(young, W1, 1000, by_age)
    assert seats.has_room(young, W2, 1000, by_age)
    seats.take(make_agent("youngest", 100, began_s=3.0), inf)
    young.tokens = 400
    assert seats.has_room(young, W1, 1000, by_age), "what comes behind it does not count"


def test_a_worker_that_keeps_few_contexts_has_as_many_seats_however_small_they_are() -> None:
    seats = Seats(lambda _: 1000, lambda worker: 2 if worker == W1 else 0)
    old, young = make_agent("old", 10, began_s=1.0), make_agent("young", 10, began_s=3.0)
    between = make_agent("between", 10, None, began_s=2.0)
    seats.take(old, inf)
    assert seats.crowded == set()

    seats.take(young, inf)

    assert seats.crowded == {W1}
    assert not seats.fits("between", W1, 10, 1000)
    assert seats.fits("young", W1, 10, 1000)
    assert seats.fits("between", W2, 1000, 1000)
    assert not seats.has_room(between, W1, 1000, by_age)
    assert seats.has_room(young, W1, 1000, by_age)
    between.worker = W1
    seats.take(between, inf)
    assert not seats.has_room(young, W1, 1000, by_age), "two are before it"
    assert seats.has_room(between, W1, 1000, by_age)


def test_how_many_contexts_a_worker_keeps_is_asked_anew() -> None:
    most = 0
    seats = Seats(lambda _: 1000, lambda _: most)
    seats.take(make_agent("a", 10), inf)
    assert seats.crowded == set()

    most = 1
    seats.measure()

    assert seats.crowded == {W1}
