"""One configured engine of a router alone: who its ranks are, and their events if it has any."""

import msgspec

from kvmesh.actors.engine_follower import EngineFollower, FollowerOptions
from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineCaughtUp,
    EngineConnected,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    EngineServed,
    PromptServed,
)
from kvmesh.app.members.engine_probe import given_endpoints, refuse_collisions
from kvmesh.app.members.worker_option import StaticWorker
from kvmesh.app.process.aio import AioDriver
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.facts import EngineFacts, EventEndpoint
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.index.index import KvIndex
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions


class _Feed:
    """Takes one rank's events to its follower. An `EventListener`."""

    def __init__(self, driver: AioDriver, to: str) -> None:
        self._driver = driver
        self._to = to

    def on_batch(self, seq: int, payload: bytes) -> None:
        del seq
        self._driver.press(self._to, EnginePayload(payload))

    def on_restarted(self) -> None:
        self._driver.press(self._to, EngineRestarted())

    def on_lost(self, first: int, last: int) -> None:
        self._driver.press(self._to, EngineLost(f"batches {first}..{last} cannot be replayed"))

    def on_resumed(self, seq: int) -> None:
        raise AssertionError(f"batch {seq} was not asked for")

    def on_caught_up(self, last_seq: int) -> None:
        del last_seq
        self._driver.press(self._to, EngineCaughtUp())

    def on_connection(self, *, connected: bool) -> None:
        self._driver.press(self._to, EngineConnected(connected=connected))


class Rank(msgspec.Struct, frozen=True):
    """One routable rank of the engine. `number` None: the engine has but one."""

    worker: WorkerId
    number: int | None


class EngineAttachment:
    """Follows the events of every rank of one engine, if `index` is given and it publishes any."""

    def __init__(
        self,
        static: StaticWorker,
        driver: AioDriver,
        index: KvIndex | None,
        secret: bytes = b"",
    ) -> None:
        self.static = static
        self.facts: EngineFacts | None = None
        self.ranks: tuple[Rank, ...] = (Rank(static.worker, None),)
        self.checked_s = 0.0
        self.weights = ""
        self._driver = driver
        self._index = index if static.zmq != "off" else None
        self._secret = secret
        self._endpoints: tuple[EventEndpoint, ...] = ()
        self._followers: dict[WorkerId, EngineFollower] = {}
        self._subscriptions: dict[WorkerId, EventSubscription] = {}

    def follows(self, worker: WorkerId) -> bool:
        """Return whether the rank's events are followed."""
        return worker in self._subscriptions

    def events(self, worker: WorkerId) -> int:
        """Return how many batches of the rank's events have come."""
        subscription = self._subscriptions.get(worker)
        return 0 if subscription is None else subscription.statistics().batches

    def block_size(self, worker: WorkerId) -> int:
        """Return the block size that the rank's events showed, else the one that the engine told;
        0 while unknown.
        """
        if worker in self._subscriptions:
            return self._followers[worker].block_size
        return self.facts.block_size if self.facts else 0

    def served(self, worker: WorkerId) -> None:
        """Learn that the rank answered a request that must have stored a block."""
        if worker in self._subscriptions:
            self._driver.post(self._followers[worker].name, EngineServed())

    def wants_answers(self, worker: WorkerId) -> bool:
        """Return whether answers of the rank help to know again what was lost of its cache."""
        return self.follows(worker) and self._followers[worker].wants_answers

    def answered(self, worker: WorkerId, answer: CacheHit) -> None:
        """Learn what an answer of the rank says of its cache."""
        if worker in self._subscriptions:
            packed = pack_hashes(answer.hashes)
            served = PromptServed(worker, packed, answer.cached, answer.lasted_s)
            self._driver.post(self._followers[worker].name, served)

    def emptied(self, worker: WorkerId) -> None:
        """Learn that the rank forgot its cache."""
        if worker in self._subscriptions:
            self._driver.post(self._followers[worker].name, CacheEmptied(worker))

    def renew(self, weights: str) -> None:
        """Take the version of the engine's weights: with another one its caches count as empty."""
        before, self.weights = self.weights, weights or self.weights
        if before and before != self.weights:
            for rank in self.ranks:
                self.emptied(rank.worker)

    def reread(self, worker: WorkerId) -> bool:
        """Follow the rank's events from the beginning; False when they are not followed."""
        subscription = self._subscriptions.get(worker)
        if subscription is None:
            return False
        subscription.begin_again()
        return True

    def statistics(self) -> dict[str, object]:
        """Return what was followed, per rank."""
        return {
            worker: {
                "cache": self._followers[worker].statistics(),
                "events": subscription.statistics(),
            }
            for worker, subscription in self._subscriptions.items()
        }

    def learn(self, facts: EngineFacts) -> tuple[WorkerId, ...]:
        """Take what the engine says of itself; return the ranks that are no more.

        Raises `ConfigError` or `TransportError` for endpoints that cannot be used.
        """
        self.facts = facts
        endpoints = self._find_endpoints(facts)
        count = len(endpoints) or facts.ranks
        before, name = self.ranks, self.static.worker
        self.ranks = (
            (Rank(name, None),)
            if count == 1
            else tuple(Rank(WorkerId(f"{name}-dp{rank}"), rank) for rank in range(count))
        )
        if endpoints != self._endpoints:
            self._detach()
            self._endpoints = endpoints
            for rank, endpoint in zip(self.ranks, endpoints, strict=True):
                self._attach(rank.worker, endpoint, facts)
        return tuple(rank.worker for rank in before if rank not in self.ranks)

    def close(self) -> None:
        """Stop following; safe to call twice."""
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()

    def _find_endpoints(self, facts: EngineFacts) -> tuple[EventEndpoint, ...]:
        static, found = self.static, facts.endpoints
        if self._index is None:
            return ()
        if static.zmq:
            given = given_endpoints(static.zmq, static.replay, facts.ranks, topic=static.topic)
            if not static.replay and len(given) == len(found):
                pairs = zip(given, found, strict=True)
                given = tuple(msgspec.structs.replace(a, replay=b.replay) for a, b in pairs)
            found = given
        refuse_collisions(found)
        return found

    def _attach(self, worker: WorkerId, endpoint: EventEndpoint, facts: EngineFacts) -> None:
        assert self._index is not None
        name = f"follower-{worker}"
        if worker not in self._followers:
            options = FollowerOptions(
                worker=worker,
                block_size=facts.block_size or None,
                secret=self._secret,
                engine=facts.kind,
                drops=self.static.eagle_drop,
                replays=bool(endpoint.replay),
            )
            self._followers[worker] = EngineFollower(self._index, options, name=name)
            self._driver.add(self._followers[worker])
        self._driver.press(name, EngineConnected(connected=False))
        subscription = EventSubscription(
            SubscriptionOptions(
                endpoint=endpoint.endpoint,
                replay_endpoint=endpoint.replay or None,
                topic=self.static.topic or endpoint.topic,
                bind=self.static.bind,
            ),
            _Feed(self._driver, name),
        )
        subscription.start()
        self._subscriptions[worker] = subscription

    def _detach(self) -> None:
        gone = tuple(self._subscriptions)
        self.close()
        for worker in gone:
            self._driver.press(self._followers[worker].name, EngineRestarted())
