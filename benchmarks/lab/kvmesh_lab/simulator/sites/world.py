"""Several fleets in one virtual time, with the network between them."""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.core.cost.selection import Random
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.sites.hot_beginnings import HotBeginnings
from kvmesh.core.sites.site_price import network_ms
from kvmesh.core.sites.sites import Sites
from kvmesh_lab.simulator.fleet.agenda import Agenda
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.sites.workload import Conversation, Turn

Rule = Literal["nearest", "skywalker", "kvmesh"]
Action = Callable[[float], None]

NAMES: Final = "abcdefgh"
BEAT_S: Final = 1.0
PROBE_S: Final = 0.1
"""SkyWalker's balancers probe their replicas and each other so often."""

MOST_QUEUED: Final = 8
"""Requests that another site's balancer may hold and still be sent more."""

BYTES_AN_EVENT_BLOCK: Final = 10
"""Of a stored block in the journal: eight of its hash, and its share of what is around it."""


class WorldOptions(msgspec.Struct, frozen=True):
    """The engines of each site, the round trips between sites, ms, the bytes a second that a
    digest may take, and how the routers of a site choose an engine.
    """

    fleet: FleetOptions
    rtt_ms: Sequence[Sequence[float]]
    digest_bytes: int = 512
    policy: RouterOptions = RouterOptions()


class Played(msgspec.Struct, frozen=True):
    """What became of a turn: where it was served, and when its client had the first token."""

    home: int
    site: int
    sent_s: float
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    failed: bool


class _Way(msgspec.Struct):
    """A turn on its way."""

    turn: Turn
    sent_s: float
    site: int
    rest: deque[Turn]
    predicted_ms: float = 0.0


class World:
    """Plays conversations by one rule. `bytes` counts those of digests and of the event feed."""

    def __init__(self, options: WorldOptions, rule: Rule, seed: int) -> None:
        self.options = options
        self.rule = rule
        self.played: list[Played] = []
        self.whys = Counter[str]()
        self.bytes = Counter[str]()
        rng: Random = random.Random(seed)  # noqa: S311  a simulation, not a secret
        self.fleets = [
            SimulatedFleet(options.fleet, options.policy, (), rng) for _ in options.rtt_ms
        ]
        self._names = NAMES[: len(self.fleets)]
        self._agenda = Agenda[Action]()
        self._ways: dict[int, _Way] = {}
        self._seen = [0] * len(self.fleets)
        self._left = 0
        self._sites = [
            Sites(name, {one: one for one in self._names if one != name}) for name in self._names
        ]
        self._hot = [HotBeginnings() for _ in self.fleets]
        self._queues: list[deque[_Way]] = [deque() for _ in self.fleets]
        self._got: list[dict[int, int]] = [{} for _ in self.fleets]
        for place in range(len(self.fleets)):
            self._agenda.enter(BEAT_S * place / len(self.fleets), partial(self._beat, place))
            if rule == "skywalker":
                self._agenda.enter(PROBE_S, partial(self._probe, place))

    def run(self, conversations: Sequence[Conversation]) -> None:
        """Play them all to their ends."""
        self._left = sum(len(one.turns) for one in conversations)
        for one in conversations:
            self._agenda.enter(one.begins_s, partial(self._next, deque(one.turns)))
        while self._left:
            times = [fleet.agenda.next_s() for fleet in self.fleets]
            if (soonest := min(times)) < self._agenda.next_s():
                place = times.index(soonest)
                self.fleets[place].step()
                self._collect(place)
            else:
                now, action = self._agenda.take()
                action(now)

    def _collect(self, place: int) -> None:
        fleet = self.fleets[place]
        for outcome in fleet.outcomes[self._seen[place] :]:
            self._seen[place] += 1
            self._left -= 1
            way = self._ways.pop(outcome.index)
            rtt_s = self.options.rtt_ms[way.turn.home][place] / 1000.0
            came_s = outcome.sent_ms / 1000.0 - way.sent_s
            ttft = came_s * 1000.0 + (outcome.ttft_ms or 0.0) + rtt_s * 500.0
            self.played.append(
                Played(
                    way.turn.home, place, way.sent_s, ttft, outcome.prompt_tokens,
                    outcome.cached_tokens, failed=bool(outcome.error),
                )
            )  # fmt: skip
            self.bytes["feed"] += (
                BYTES_AN_EVENT_BLOCK
                * (outcome.prompt_tokens - outcome.cached_tokens)
                // self.options.fleet.engine.block_size
            )
            if way.predicted_ms:
                self._sites[way.turn.home].first_token(
                    self._names[place], way.predicted_ms, ttft, fleet.now
                )
            if way.rest:
                after_s = fleet.now + rtt_s / 2 + way.rest[0].pause_s
                self._agenda.enter(after_s, partial(self._next, way.rest))

    def _next(self, turns: deque[Turn], now: float) -> None:
        turn = turns.popleft()
        way = _Way(turn, now, turn.home, turns)
        match self.rule:
            case "nearest":
                self._send(way, turn.home, now)
            case "skywalker":
                self._queues[turn.home].append(way)
                self._push(turn.home, now)
            case "kvmesh":
                self._choose(way, now)

    def _choose(self, way: _Way, now: float) -> None:
        asked, home = way.turn.asked, way.turn.home
        sites = self._sites[home]
        choice = sites.choose(asked, now)
        site = self._names[home] if choice is None else choice.site
        way.predicted_ms = sites.predict_ms(asked, site, now)
        sites.note(asked, site, now)
        self.whys["home" if choice is None else choice.why] += 1
        self._send(way, self._names.index(site), now)

    def _send(self, way: _Way, site: int, now: float) -> None:
        way.site = site
        home, index = way.turn.home, way.turn.request.trace.index
        self._ways[index] = way
        if site == home:
            self._hot[home].note(way.turn.asked.beginnings, now)
            self.fleets[site].send_at(now, way.turn.request)
            return
        rtt_ms = self.options.rtt_ms[home][site]
        sent_chars = way.turn.asked.prompt_chars
        after_s = (network_ms(rtt_ms, sent_chars) - rtt_ms / 2) / 1000.0
        self.fleets[site].send_at(now + after_s, way.turn.request)
        self._agenda.enter(now + after_s, partial(self._arrived, way))

    def _arrived(self, way: _Way, now: float) -> None:
        """Have the other site's own door remember what it got."""
        asked, site = way.turn.asked, way.site
        self._hot[site].note(asked.beginnings, now)
        self._sites[site].note(asked, self._names[site], now)

    def _beat(self, place: int, now: float) -> None:
        """Report a site's load at home, and send its digest to the others."""
        fleet = self.fleets[place]
        scheduler = fleet.routers[0].scheduler
        waits = [
            scheduler.sequences.loads(one).wait_ms(scheduler.speeds.ms_per_token(one), now)
            for one in scheduler.workers.everyone(now)
        ]
        heat = BucketHeat(min(waits), scheduler.speeds.fleet_ms_per_token, len(waits))
        load = (BucketLoad(("m",), heat),)
        self._sites[place].take_own(load, now)
        hot = self._hot[place].take(max(0, self.options.digest_bytes - 120), now)
        self.bytes["digest"] += 120 + len(hot)
        keys = [int.from_bytes(hot[at : at + 8], "little") for at in range(0, len(hot), 8)]
        for other, sites in enumerate(self._sites):
            if other != place:
                rtt_ms = self.options.rtt_ms[place][other]
                sites.answered(self._names[place], rtt_ms)
                told = partial(self._told, sites, self._names[place], load, keys)
                self._agenda.enter(now + rtt_ms / 2000.0, told)
        self._agenda.enter(now + BEAT_S, partial(self._beat, place))

    @staticmethod
    def _told(
        sites: Sites, name: str, load: Sequence[BucketLoad], keys: Sequence[int], now: float
    ) -> None:
        sites.take(name, load, keys, now, ready=True)

    # SkyWalker's rule: a request is pushed to a replica that has none pending; to another site's
    # balancer only while no replica here is free, by the longest prefix among those that have one.

    def _free(self, place: int) -> list[str]:
        fleet = self.fleets[place]
        return [one.worker for one in fleet.engines if not one.report().waiting_requests]

    def _push(self, place: int, now: float) -> None:
        queue = self._queues[place]
        while queue:
            site = self._free_site(place, queue[0])
            if site is None:
                return
            way = queue.popleft()
            self.whys["home" if site == place else "pushed"] += 1
            self._remember(site, way)
            self._send(way, site, now)
            if site == place and self.fleets[place].agenda.next_s() <= now:
                self.fleets[place].step()  # it is there: who looks next sees it
                self._collect(place)

    def _free_site(self, place: int, way: _Way) -> int | None:
        """Return where a request may be pushed: home first, then by the longest prefix."""
        if self._free(place):
            return place
        free = [
            other
            for other in range(len(self.fleets))
            if other != place and self._free(other) and len(self._queues[other]) <= MOST_QUEUED
        ]
        return max(free, key=lambda other: (self._held(other, way), -other), default=None)

    def _held(self, site: int, way: _Way) -> int:
        got = self._got[site]
        asked = way.turn.asked
        begun = max((one.chars for one in asked.beginnings if one.key in got), default=0)
        return begun + (1 << 20 if any(key in got for key in asked.ends[1:]) else 0)

    def _remember(self, site: int, way: _Way) -> None:
        got = self._got[site]
        for one in way.turn.asked.beginnings:
            got[one.key] = one.chars
        got[way.turn.asked.ends[0]] = 1

    def _probe(self, place: int, now: float) -> None:
        self._push(place, now)
        self._agenda.enter(now + PROBE_S, partial(self._probe, place))
