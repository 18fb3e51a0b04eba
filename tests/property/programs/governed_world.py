"""Agents in closed loop, engines that take a while, replicas that hear of each other late."""

import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.table import AgentRecord
from kvmesh.core.programs.turn import Grant, Stop, Turn, TurnEnd
from tests.unit.core.programs.program_cases import SmallFleet, key, make_governor

LOOK_S = 0.02
"""A replica looks so soon behind what happens, as routers do."""


class World:
    """Everything random comes from `seed`. `longest_s` is the longest time a turn was held,
    `served` counts turns by agent, `unfinished` are agents that have turns left.
    """

    def __init__(
        self, seed: int, *, replicas: int = 1, bound_s: float = 30.0, most_agents: int = 0
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.bound_s = bound_s
        caches = {f"w{n}": rng.choice((700, 1000)) for n in range(rng.randint(1, 3))}
        self.fleet = SmallFleet(**caches)
        self.fleet.per_token_ms = rng.choice((1.0, 10.0, 100.0))
        most = most_agents or rng.choice((5, 1000))
        self.governors = [
            make_governor(self.fleet, max_wait_s=bound_s, max_agents=most) for _ in range(replicas)
        ]
        self.alive = list(range(replicas))
        self.delay_s = rng.choice((0.0, 0.005, 0.5))
        self.now = 0.0
        self.longest_s = 0.0
        self.left = {f"a{n}": rng.randint(1, 6) for n in range(rng.randint(4, 13))}
        self.served = dict.fromkeys(self.left, 0)
        self.tokens = {name: rng.randint(50, 900) for name in self.left}
        self._asked: dict[str, tuple[float, int, Turn]] = {}
        self._under_way: dict[str, tuple[int, Turn]] = {}
        self._serial = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        for name in self.left:
            self.at(rng.expovariate(0.2), partial(self.send, name))

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        heappush(self._agenda, (self.now + after_s, next(self._serial), action))

    def run(self) -> None:
        while self._agenda:
            self.now, _, action = heappop(self._agenda)
            action()

    @property
    def unfinished(self) -> list[str]:
        return [name for name, turns in self.left.items() if turns]

    def send(self, name: str) -> None:
        place = self.rng.choice(self.alive)
        turn = Turn(
            request_id=f"{name}/{next(self._serial)}",
            agent=key(name),
            program=key(name),
            tenant=("one", "two")[len(name) % 2],
            priority=self.rng.choice((0, 0, 0, 3)),
            prompt_tokens=self.tokens[name],
            final=self.left[name] == 1,
        )
        self._asked[turn.request_id] = self.now, place, turn
        grant = self.governors[place].ask(turn, self.now)
        if grant is not None:
            self.place(place, turn, grant)
        elif self.rng.random() < 0.05:
            self.at(self.rng.uniform(0.0, 20.0), lambda: self.leave(place, turn))
        self.tell(place)
        self.look_at(place)

    def leave(self, place: int, turn: Turn) -> None:
        """Have a client go away, and come back with the same turn."""
        if place in self.alive and self.governors[place].cancel(turn.request_id):
            del self._asked[turn.request_id]
            self.tell(place)
            self.at(1.0, lambda: self.send(self.name_of(turn)))

    def name_of(self, turn: Turn) -> str:
        return turn.request_id.partition("/")[0]

    def place(self, place: int, turn: Turn, grant: Grant) -> None:
        asked_s, _, _ = self._asked.pop(turn.request_id)
        self.longest_s = max(self.longest_s, self.now - asked_s)
        worker = self.rng.choice(sorted(grant.workers or self.fleet.tokens))
        self._under_way[turn.request_id] = place, turn
        self.governors[place].chosen(turn, worker, self.now)
        self.at(self.rng.expovariate(0.3), lambda: self.end(place, turn, worker))

    def end(self, place: int, turn: Turn, worker: WorkerId) -> None:
        if self._under_way.pop(turn.request_id, None) is None:
            return
        name = self.name_of(turn)
        served = self.rng.random() < 0.95
        stop: Stop = self.rng.choice(("tool", "end", "length", ""))
        end = TurnEnd(served=served, worker=worker, output_tokens=20, stop=stop)
        self.governors[place].ended(turn, end, self.now)
        self.tell(place)
        self.look_at(place)
        if served:
            self.left[name] -= 1
            self.served[name] += 1
            self.tokens[name] += self.rng.randint(0, 80)
        if self.left[name]:
            pause_s = self.rng.lognormvariate(0.5, 1.5) if served else 0.1
            self.at(pause_s, lambda: self.send(name))

    def kill(self, place: int) -> None:
        """Have a replica die: its clients send their turns to another one."""
        self.alive.remove(place)
        cut = [turn for where, turn in self._under_way.values() if where == place]
        cut += [turn for _, where, turn in self._asked.values() if where == place]
        for turn in cut:
            self._under_way.pop(turn.request_id, None)
            self._asked.pop(turn.request_id, None)
            self.at(0.5, partial(self.send, self.name_of(turn)))

    def tell(self, place: int) -> None:
        governor = self.governors[place]
        reported_s = self.now
        reported = [agent.record(reported_s) for agent in governor.updates.values()]
        governor.updates.clear()
        if reported and len(self.governors) > 1:
            self.at(self.delay_s, lambda: self.receive(place, reported, reported_s))

    def receive(self, place: int, reported: list[AgentRecord], reported_s: float) -> None:
        late_s = self.now - reported_s
        for other in self.alive:
            if other == place:
                continue
            for record in reported:
                older = msgspec.structs.replace(
                    record, age_s=record.age_s + late_s, since_s=record.since_s + late_s
                )
                assert not self.governors[other].receive(record.agent, older, self.now)
            self.look_at(other)

    def look_at(self, place: int) -> None:
        due_s = self.governors[place].next_s(self.now)
        if due_s < float("inf"):
            self.at(max(0.0, due_s - self.now), lambda: self.check(place))

    def check(self, place: int) -> None:
        governor = self.governors[place]
        if place not in self.alive or governor.next_s(self.now) > self.now:
            return
        for request_id, grant in governor.release(self.now):
            self.place(place, self._asked[request_id][2], grant)
        self.tell(place)
        due_s = governor.next_s(self.now)
        if due_s < float("inf"):
            self.at(max(LOOK_S, due_s - self.now), lambda: self.check(place))


def reserved(governor: Governor, fleet: SmallFleet, now: float) -> int:
    return sum(governor.reserved_tokens(worker, now) for worker in fleet.tokens)
