"""A random engine: a cache that grows, evicts where it likes, repeats itself and restarts."""

import random
from collections import Counter

import msgspec

from kvmesh.actors.checkpoints import EngineResumed
from kvmesh.actors.engine_messages import (
    EngineCaughtUp,
    EngineLost,
    EnginePayload,
    EngineRestarted,
)
from kvmesh.actors.kernel import Effect, Message, Send, Wake
from kvmesh.actors.messages import Started, Tick
from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.engines.kv_events.checkpoint import EngineCheckpoint
from kvmesh.core.engines.kv_events.event_source import batch_digest

BLOCK_SIZE = 2
CAPACITY = 60
MEDIA = ("GPU", "CPU", "DISK")
MASK = (1 << 64) - 1
Prefix = tuple[int, ...]


def engine_hash(prefix: Prefix) -> int:
    return hash(("engine", *prefix)) & MASK


class Engine:
    """The engine's process, which outlives its sidecar, and its replay buffer. `restarts`: now and
    then, by itself.
    """

    def __init__(self, rng: random.Random, buffer_steps: int = 10_000) -> None:
        self.rng = rng
        self.generation = 1
        self.restarts = True
        self.first_batch = 0
        self.batches: list[bytes] = []
        self._buffer_steps = buffer_steps
        self._stored: Counter[tuple[Prefix, int]] = Counter()
        self._tiers = {0}
        self._contents: dict[Prefix, int] = {}

    def step(self) -> None:
        """Do one scheduler step and publish its events."""
        dice = self.rng.random()
        if dice < 0.004 and self.restarts:
            self.restart()
            return
        events: list[dict[str, object]] = []
        if dice < 0.01:
            self._clear()
            events.append({"type": "AllBlocksCleared"})
        for _ in range(self.rng.randrange(1, 4)):
            events += self._evict() if len(self._stored) > CAPACITY else []
            events.append(
                self._store() if self.rng.random() < 0.75 or not self._stored else self._remove()
            )
        self.batches.append(msgspec.msgpack.encode([float(self.generation), events, 0]))
        self.first_batch = max(0, len(self.batches) - self._buffer_steps)

    def restart(self) -> None:
        """Begin anew with an empty cache."""
        self.generation += 1
        self.first_batch, self.batches = 0, []
        self._clear()

    def truth(self) -> int:
        """Return the digest of what prefix lookups can reach, per tier or nearer."""
        digest = 0
        for tier in self._tiers:
            reachable: set[Prefix] = set()
            for prefix in sorted({one for one, at in self._stored if at <= tier}, key=len):
                if len(prefix) == 1 or prefix[:-1] in reachable:
                    reachable.add(prefix)
            digest += (2 * tier + 1) * sum(map(self._content, reachable))
        return digest & MASK

    def _clear(self) -> None:
        self._stored.clear()
        self._tiers = {0}

    def _content(self, prefix: Prefix) -> int:
        if prefix not in self._contents:
            parent = self._content(prefix[:-1]) if len(prefix) > 1 else None
            tokens = [prefix[-1]] * BLOCK_SIZE
            self._contents[prefix] = sequence_hashes(tokens, BLOCK_SIZE, ROOT, parent)[0]
        return self._contents[prefix]

    def _store(self) -> dict[str, object]:
        """Store a run, mostly behind something held; now and then what is held already."""
        held = [prefix for prefix, _ in self._stored]
        base = self.rng.choice(held) if held and self.rng.random() < 0.8 else ()
        if base and self.rng.random() < 0.15:
            run, base = [base], base[:-1]
            if base and base not in held:
                run, base = [run[0][:1]], ()
        else:
            run = []
            for _ in range(self.rng.randrange(1, 5)):
                run.append((*(run[-1] if run else base), self.rng.randrange(5)))
        tier = self.rng.choice((0, 0, 0, 0, 0, 1, 2))
        self._tiers.add(tier)
        self._stored.update((prefix, tier) for prefix in run)
        return {
            "type": "BlockStored",
            "block_hashes": [engine_hash(prefix) for prefix in run],
            "parent_block_hash": engine_hash(base) if base else None,
            "token_ids": [prefix[-1] for prefix in run for _ in range(BLOCK_SIZE)],
            "block_size": BLOCK_SIZE,
            "medium": MEDIA[tier],
        }

    def _remove(self) -> dict[str, object]:
        """Evict any block, leaf or not."""
        victim = self.rng.choice(list(self._stored))
        self._stored[victim] -= 1
        if not self._stored[victim]:
            del self._stored[victim]
        prefix, tier = victim
        return {
            "type": "BlockRemoved",
            "block_hashes": [engine_hash(prefix)],
            "medium": MEDIA[tier],
        }

    def _evict(self) -> list[dict[str, object]]:
        return [self._remove() for _ in range(8)]


class EngineLink:
    """The sidecar's reader of one engine: everything once, in order, also after a restart.

    `kept` is what an earlier sidecar knew: where batches are gone it is gone on from, if the engine
    is the same still and has what followed.
    """

    def __init__(
        self, engine: Engine, to: str = "publisher", kept: EngineCheckpoint | None = None
    ) -> None:
        self._kept = kept
        self.name = "engine_link"
        self._engine = engine
        self._to = to
        self._generation = engine.generation
        self._next = 0

    def receive(self, message: Message, now: float) -> list[Effect]:  # noqa: ARG002
        assert isinstance(message, Started | Tick)
        effects: list[Effect] = []
        engine = self._engine
        if self._generation != engine.generation:
            self._generation, self._next = engine.generation, 0
            effects.append(Send(self._to, EngineRestarted()))
        if self._next < engine.first_batch:
            self._next = engine.first_batch
            effects.append(Send(self._to, EngineLost("replay buffer too short")))
            effects += self._go_on()
        new = enumerate(engine.batches[self._next :], self._next)
        effects.extend(Send(self._to, EnginePayload(payload, seq)) for seq, payload in new)
        self._next = len(engine.batches)
        return [*effects, Send(self._to, EngineCaughtUp()), Wake(0.01, Tick("poll"))]

    def _go_on(self) -> list[Effect]:
        kept, self._kept = self._kept, None
        engine = self._engine
        if kept is None or not engine.first_batch <= kept.seq < len(engine.batches):
            return []
        if batch_digest(engine.batches[kept.seq]) != kept.batch:
            return []
        self._next = kept.seq + 1
        return [Send(self._to, EngineResumed(kept))]
