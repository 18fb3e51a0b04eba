"""Whoever is held is told how long it waits at most, and is let go by then, whatever happens."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import Placed
from kvmesh.core.admission.queue import AdmissionOptions
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.decision import RouteRequest
from tests.unit.core.routing.scheduling import W1, W2
from tests.unit.core.routing.test_late_binding import make_governed

LOOK_S = 0.25
BLOCKS = 900
"""Of a context: a cache of 1,200 holds one."""


class Routing:
    """What waits, by a clock that only the test moves; looked at each `LOOK_S`."""

    def __init__(self) -> None:
        self.binding, self.governor = make_governed(W1, W2, max_wait_s=30.0)
        self.bound_queue(20.0, 1.0)
        self.now = 0.0
        self.until_s: dict[str, float] = {}
        self.turns: dict[str, Turn | None] = {}
        self.running: list[str] = []
        for agent in (6, 7):  # both caches are taken
            self.arrive(agent, True, 90.0, 0)

    def arrive(self, agent: int, named: bool, patience_s: float, priority: int) -> None:
        name = f"r{len(self.turns)}"
        turn = Turn(
            request_id=name,
            agent=str(agent),
            program=str(agent),
            prompt_tokens=BLOCKS * 16,
            priority=priority,
            patience_s=patience_s,
        )
        self.turns[name] = turn if named else None
        hashes = BlockHashes.of([agent * 10_000 + depth for depth in range(BLOCKS)], 16)
        asked = RouteRequest(*(name, hashes, BLOCKS * 16), priority=priority, turn=self.turns[name])
        answer = self.binding.ask(asked, self.now)
        if isinstance(answer, Placed):
            self.running.append(name)
        elif answer is None:
            most_s = self.binding.bound_s(name, patience_s, self.now)
            assert most_s <= patience_s + 1e-6
            assert self.binding.expected_wait_s(name, self.now) >= 0.0
            self.until_s[name] = self.now + most_s

    def end(self, index: int) -> None:
        if index < len(self.running):
            name = self.running.pop(index)
            self.binding._scheduler.first_token(name, self.now)
            self.binding._scheduler.finish(name, self.now)
            if (turn := self.turns[name]) is not None:
                self.governor.ended(turn, TurnEnd(served=True, worker=W1), self.now)

    def bound_turns(self, most_s: float) -> None:
        self.governor.change(GovernorOptions(max_wait_s=most_s))

    def bound_queue(self, most_s: float, backlog_ms: float) -> None:
        self.binding.change(AdmissionOptions(max_backlog_ms=backlog_ms, max_wait_s=most_s))

    def wait(self, looks: int) -> None:
        for _ in range(looks):
            self.now += LOOK_S
            for released in self.binding.release(self.now, lambda: False):
                self.let_go(released.request_id)
                if isinstance(released.verdict, Placed):
                    self.running.append(released.request_id)
            for name in self.binding.expire(self.now):
                self.let_go(name)
            assert all(self.now < latest_s for latest_s in self.until_s.values())
            assert set(self.until_s) == {*self.binding.waiting, *self.binding.governed}

    def let_go(self, name: str) -> None:
        assert self.now < self.until_s.pop(name) + LOOK_S


seconds = st.floats(0.5, 90.0)
steps = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 5), st.booleans(), seconds, st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("bound_turns"), seconds),
    st.tuples(st.just("bound_queue"), seconds, st.sampled_from([1.0, 100.0])),
    st.tuples(st.just("wait"), st.integers(1, 40)),
)


@given(st.lists(steps, min_size=20, max_size=60))
def test_no_request_waits_longer_than_it_was_told(story: list[tuple[str, object]]) -> None:
    routing = Routing()

    for name, *arguments in story:
        getattr(routing, name)(*arguments)
    routing.wait(400)

    assert not routing.until_s
