"""Replicas that share agents over a table with delays, and lose some of themselves: by seeds."""

import random

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.sharing import ABSENT_S, ProgramSharing
from kvmesh.core.programs.table import AgentRecord
from kvmesh.core.programs.turn import Turn, TurnEnd

WORKERS = (WorkerId("w0"), WorkerId("w1"))
CAPACITY = 100_000
UNIX_S = 1_700_000_000.0
STEPS = 400
AGENTS = 12
STOPS = ("tool", "end", "", "length")


class Fleet:
    """Two engines, as the governor sees them."""

    def workers(self, now: float) -> tuple[WorkerId, ...]:
        del now
        return WORKERS

    def contexts(self, worker: WorkerId) -> int:
        del worker
        return 0

    def capacity_tokens(self, worker: WorkerId) -> int:
        del worker
        return CAPACITY

    def active_tokens(self, worker: WorkerId) -> int:
        del worker
        return 0

    def ms_per_token(self, worker: WorkerId) -> float:
        del worker
        return 1.0

    def seen_ms_per_token(self, worker: WorkerId, tokens: int) -> float:
        del tokens
        return self.ms_per_token(worker)


class Replica:
    """One life of a router: a governor, its part in the table, how far it has read that."""

    def __init__(self, name: str, epoch: int) -> None:
        self.name = name
        self.epoch = epoch
        self.governor = Governor(GovernorOptions(max_wait_s=30.0), Fleet())
        self.sharing = ProgramSharing(self.governor, name, epoch)
        self.read = 0
        self.running: dict[str, tuple[Turn, WorkerId]] = {}


class World:
    """A table that is a log, replicas that read it late, and clients that come and go."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.log: list[tuple[str, bytes]] = []
        self.replicas = {name: Replica(name, 1) for name in ("r0", "r1", "r2")}
        self.turns = 0

    def step(self) -> None:
        self.now += self.rng.choice((0.0, 0.01, 0.5, 3.0))
        replica = self.rng.choice([*self.replicas.values()])
        self.rng.choice((self.ask, self.ask, self.end, self.flush, self.read, self.read))(replica)
        self.release(replica)

    def ask(self, replica: Replica) -> None:
        agent = f"{self.rng.randrange(AGENTS):032x}"
        if any(agent == turn.agent for turn, _ in self.under_way()):
            return
        self.turns += 1
        turn = Turn(
            request_id=f"q{self.turns}",
            agent=agent,
            program=agent,
            prompt_tokens=self.rng.choice((1000, 20_000, 60_000, 120_000)),
            final=self.rng.random() < 0.1,
        )
        grant = replica.governor.ask(turn, self.now)
        if grant is not None:
            self.begin(replica, turn, grant.workers)

    def begin(self, replica: Replica, turn: Turn, workers: frozenset[WorkerId] | None) -> None:
        worker = self.rng.choice(sorted(workers or WORKERS))
        replica.governor.chosen(turn, worker, self.now)
        replica.running[turn.request_id] = (turn, worker)

    def end(self, replica: Replica) -> None:
        if replica.running:
            turn, worker = replica.running.pop(self.rng.choice(sorted(replica.running)))
            stop = self.rng.choice(STOPS)
            served = self.rng.random() < 0.9
            end = TurnEnd(served=served, worker=worker, output_tokens=500, stop=stop)  # type: ignore[arg-type]  # one of the words
            replica.governor.ended(turn, end, self.now)

    def release(self, replica: Replica) -> None:
        waiting = dict(replica.governor.waiting)
        for request_id, grant in replica.governor.release(self.now):
            self.begin(replica, waiting[request_id].turn, grant.workers)

    def flush(self, replica: Replica) -> None:
        self.log += replica.sharing.take(512, self.now, UNIX_S + self.now)

    def read(self, replica: Replica, most: int = 3) -> None:
        for key, value in self.log[replica.read : replica.read + most]:
            assert replica.sharing.receive(key, value, self.now) == ""
        replica.read = min(len(self.log), replica.read + most)

    def kill(self, name: str) -> None:
        """End a replica with its turns, its news and all it knows; another life reads the table."""
        del self.replicas[name]

    def start(self, name: str, epoch: int) -> None:
        replica = self.replicas[name] = Replica(name, epoch)
        for key, value in dict(self.log).items():
            assert replica.sharing.receive(key, value, self.now, UNIX_S + self.now) == ""
        replica.read = len(self.log)

    def under_way(self) -> list[tuple[Turn, WorkerId]]:
        return [one for replica in self.replicas.values() for one in replica.running.values()]

    def settle(self) -> None:
        """Let all be told and heard, and what died be found dead."""
        alive = {name: one.epoch for name, one in self.replicas.items()}
        for _ in range(4):
            for replica in self.replicas.values():
                replica.sharing.settle(alive, self.now)
            self.now += ABSENT_S
            for _ in range(3):
                for replica in self.replicas.values():
                    self.flush(replica)
                for replica in self.replicas.values():
                    self.read(replica, len(self.log))


def known(replica: Replica, now: float) -> dict[str, AgentRecord]:
    """Return what a replica knows of agents, but for moments: those are told with delays."""
    return {
        key: msgspec.structs.replace(
            agent.record(now), age_s=0.0, since_s=0.0, late_s=-1.0, seated=False
        )
        for key, agent in replica.governor.table.agents.items()
    }


def reserved(replica: Replica) -> dict[str, tuple[str, int]]:
    """Return who has how much of a cache kept while a turn is taken: that expires by no clock."""
    seats = {
        key: replica.governor.seat_of(key, 0.0)
        for key, agent in replica.governor.table.agents.items()
        if agent.phase == "running"
    }
    return {key: (seat.worker, seat.tokens) for key, seat in seats.items() if seat is not None}


@pytest.mark.parametrize("seed", range(60))
def test_replicas_come_to_know_the_same_whatever_the_order_they_hear_it_in(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()

    world.settle()

    first, *others = world.replicas.values()
    for other in others:
        assert known(other, world.now) == known(first, world.now)
        assert reserved(other) == reserved(first)


@pytest.mark.parametrize("seed", range(60))
def test_a_replica_that_dies_takes_no_programs_turn_or_reservation_along(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    died = world.rng.choice(("r0", "r1", "r2"))
    for replica in world.replicas.values():
        world.read(replica, len(world.log))
    kept = {
        key
        for name, replica in world.replicas.items()
        if name != died
        for key in replica.governor.table.agents
    }
    lost = {turn.agent for turn, _ in world.replicas[died].running.values()}

    world.kill(died)
    for _ in range(STEPS // 4):
        world.step()
    world.start(died, 2)
    world.settle()

    first, *others = world.replicas.values()
    for replica in world.replicas.values():
        assert kept <= replica.governor.table.agents.keys()
    for other in others:
        assert known(other, world.now) == known(first, world.now)
    running = {turn.agent for turn, _ in world.under_way()}
    agents = first.governor.table.agents
    stuck = {key for key in lost & agents.keys() - running if agents[key].phase == "running"}
    assert not stuck, "a turn that died with its replica holds its reservation for ever"


@pytest.mark.parametrize("seed", range(20))
def test_no_turn_waits_beyond_the_bound_whoever_dies(seed: int) -> None:
    world = World(seed)
    for number in range(STEPS):
        world.step()
        if number == STEPS // 2:
            world.kill("r1")
        for replica in world.replicas.values():
            world.release(replica)
            since = replica.governor.waiting.since().values()
            assert all(world.now - one[0] < replica.governor.options.max_wait_s for one in since)
