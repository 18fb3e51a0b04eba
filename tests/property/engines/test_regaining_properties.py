"""What is believed of an engine through losses, checkpoints and prompts, against what it holds."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Event, Stored
from kvmesh.core.blocks.hashing import sequence_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.regaining import PROOF_RUNS, SETTLE_S, CacheHit, Regaining
from kvmesh.core.engines.kv_events.saved_cache import SavedCache

SIZE = 2
MASK = (1 << 64) - 1
Prefix = tuple[int, ...]


def engine_hash(prefix: Prefix) -> int:
    return hash(("engine", *prefix)) & MASK


def contents(prompt: Prefix) -> list[int]:
    return sequence_hashes([one for one in prompt for _ in range(SIZE)], SIZE, ROOT)


class NaiveEngine:
    """A cache of blocks that requests extend behind their longest cached prefix."""

    def __init__(self) -> None:
        self.held: Counter[Prefix] = Counter()
        self.events: list[dict[str, object]] = []

    def serve(self, prompt: Prefix, *, again: bool = False) -> int:
        """Store what is missing of a prompt; return how many of its blocks were cached."""
        cached = 0
        while cached < len(prompt) and self.held[prompt[: cached + 1]]:
            cached += 1
        # An engine may store its last block once more.
        first = cached - 1 if again and cached == len(prompt) else cached
        run = [prompt[: end + 1] for end in range(first, len(prompt))]
        if run:
            self.held.update(run)
            stored: dict[str, object] = {
                "type": "BlockStored",
                "block_hashes": [engine_hash(one) for one in run],
                "parent_block_hash": engine_hash(prompt[:first]) if first else None,
                "token_ids": [one[-1] for one in run for _ in range(SIZE)],
                "block_size": SIZE,
                "medium": "GPU",
            }
            self.events.append(stored)
        return cached

    def leaves(self) -> list[Prefix]:
        """Return the blocks without a held child: engines evict no others."""
        parents = {one[:-1] for one in self.held}
        return sorted(one for one in self.held if one not in parents)

    def evict(self, victim: Prefix) -> None:
        self.held[victim] -= 1
        if not self.held[victim]:
            del self.held[victim]
        gone: list[object] = [engine_hash(victim)]
        self.events.append({"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"})

    def clear(self) -> None:
        self.held.clear()
        self.events.append({"type": "AllBlocksCleared"})

    def batch(self) -> bytes:
        events, self.events = self.events, []
        return msgspec.msgpack.encode([0.0, events, 0])

    def holds(self) -> set[int]:
        """Return the contents that are held."""
        return {contents(one)[-1] for one in self.held}


def believed(events: list[Event]) -> set[int]:
    """Return the contents that a dump stores."""
    return {
        one for event in events if isinstance(event, Stored) for one in unpack_hashes(event.hashes)
    }


class Followed:
    """An engine, what follows it, and what is kept of that for a later sidecar."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = NaiveEngine()
        self.since: list[bytes] = []
        self.kept: SavedCache | None = None
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Begin as another sidecar does, late."""
        self.cache = EngineCache(SIZE)
        self.regaining = Regaining(self.cache)

    def prompt(self, width: int = 3) -> Prefix:
        return tuple(self.rng.randrange(width) for _ in range(self.rng.randrange(1, 6)))

    def publish(self) -> None:
        self.now += 0.01
        payload = self.engine.batch()
        self.since.append(payload)
        self.regaining.take(payload, self.now)

    def serve(self, prompt: Prefix, *, again: bool = False, tells: bool = True) -> None:
        """Have a prompt served, others in between, and tell what was cached of it."""
        cached = self.engine.serve(prompt, again=again)
        if self.rng.random() < 0.2:
            self.engine.serve(self.prompt())
        self.publish()
        if tells:
            answer = CacheHit(contents(prompt), cached, lasted_s=0.01)
            self.regaining.served(answer, self.now)
        self.now += self.rng.choice((0.0, SETTLE_S))
        self.regaining.settle(self.now)

    def evict(self, most: int) -> None:
        for _ in range(self.rng.randrange(1, most)):
            if self.engine.held:
                self.engine.evict(self.rng.choice(self.engine.leaves()))

    def step(self, kind: str) -> None:
        if kind == "serve":
            self.serve(self.prompt(), again=self.rng.random() < 0.3, tells=self.rng.random() < 0.8)
        elif kind == "evict":
            self.evict(4)
            self.publish()
        elif kind == "clear":
            self.engine.clear()
            self.publish()
        elif kind == "save" and self.cache.complete:
            self.kept, self.since = self.cache.save(), []
        elif kind == "lose":
            self.regaining.lose()
            self.engine.serve(self.prompt())
            self.since.append(self.engine.batch())
        elif kind == "start late":
            self.start()
            self.regaining.lose()
        elif kind == "resume" and self.kept is not None:
            self.start()
            self.regaining.load(self.kept)
            for payload in self.since:
                self.regaining.take(payload, self.now)


kinds = st.sampled_from(
    ["serve"] * 8 + ["evict"] * 3 + ["clear", "save", "lose", "start late", "resume"]
)


@given(plan=st.lists(kinds, max_size=60), seed=st.integers(0, 1 << 30))
def test_whatever_is_lost_nothing_is_believed_that_the_engine_does_not_hold(
    plan: list[str], seed: int
) -> None:
    followed = Followed(seed)
    for kind in plan:
        followed.step(kind)
        assert believed(followed.cache.dump()) <= followed.engine.holds()


@pytest.mark.parametrize("seed", range(20))
def test_after_a_loss_all_is_known_again_of_an_engine_that_is_never_restarted(seed: int) -> None:
    followed = Followed(seed)
    engine, head = followed.engine, (9, 8, 7, 6)
    for _ in range(30):
        engine.serve((*head, *followed.prompt()))
    followed.publish()
    followed.regaining.lose()
    assert followed.regaining.wants_answers

    served = 0
    while not followed.cache.complete:
        followed.serve((*head, *followed.prompt(width=40)))
        while len(engine.held) > 60:
            followed.evict(2)
        served += 1
        assert served < 40 * PROOF_RUNS
    followed.publish()

    known = believed(followed.cache.dump())
    assert known <= engine.holds()
    assert set(contents(head)) <= known
    assert not followed.regaining.wants_answers
