"""Several cache groups against the rule of hits itself, worked out anew after each batch."""

import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Event, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import (
    extend_hash,
    lookahead_digest,
    sequence_hashes,
    unpack_hashes,
)
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import closure, residency
from kvmesh.core.engines.kv_events.cache import EngineCache
from tests.reference.engines.cache import NaiveEngineCache

UNIT = 2
Tokens = tuple[int, ...]


class Kind(Struct, frozen=True):
    """A group: its kind, its block size in units, and how many tokens it attends to."""

    kind: str
    step: int
    window: int | None = None

    @property
    def need(self) -> int:
        if self.kind == "sliding_window" and self.window:
            return max(1, math.ceil((self.window - 1) / (self.step * UNIT)))
        return 1 << 30


class Setup(Struct, frozen=True):
    groups: tuple[Kind, ...]
    lookahead: int = 0
    drops: bool = False

    @property
    def full(self) -> list[int]:
        return [at for at, one in enumerate(self.groups) if one.kind == "full_attention"]

    @property
    def align(self) -> int:
        fine = min(one.step for one in self.groups)
        states = any(one.kind == "mamba" and one.step > fine for one in self.groups)
        coarse = any(
            one.kind not in ("mamba", "full_attention") and one.step > fine for one in self.groups
        )
        if states and not coarse:
            return 1
        return math.lcm(*(one.step for one in self.groups))

    @property
    def drop(self) -> int:
        steps = [one.step for one in self.groups if one.kind != "mamba"]
        return max(steps, default=1) if self.drops else 0


class Model:
    """What is held: (group, tokens up to the boundary and behind as its hash covers, tier)."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.held: Counter[tuple[int, Tokens, int]] = Counter()
        self.tiers = {0}

    def depth(self, tokens: Tokens) -> int:
        return (len(tokens) - self.setup.lookahead) // UNIT

    def at(self, tokens: Tokens, depth: int) -> Tokens:
        return tokens[: depth * UNIT + self.setup.lookahead]

    def holds(self, group: int, tokens: Tokens, tier: int) -> bool:
        return any(self.held[group, tokens, upto] > 0 for upto in self.tiers if upto <= tier)

    def chain(self, tier: int) -> set[Tokens]:
        known = {tokens for (_, tokens, upto), n in self.held.items() if n > 0}
        every = {self.at(one, depth) for one in known for depth in range(1, self.depth(one) + 1)}
        if not self.setup.full:
            return every
        covered: dict[int, set[Tokens]] = {group: set() for group in self.setup.full}
        for (group, tokens, upto), count in self.held.items():
            if group in covered and upto <= tier and count > 0:
                last, step = self.depth(tokens), self.setup.groups[group].step
                first = last - (last % step or step)
                covered[group] |= {self.at(tokens, depth) for depth in range(first + 1, last + 1)}
        return {
            one
            for one in every
            if all(
                self.at(one, depth) in blocks
                for blocks in covered.values()
                for depth in range(1, self.depth(one) + 1)
            )
        }

    def ends(self, tier: int) -> set[Tokens]:
        return {one for one in self.chain(tier) if self.is_end(one, tier)}

    def is_end(self, tokens: Tokens, tier: int) -> bool:
        setup, drop = self.setup, self.setup.drop
        length = self.depth(tokens) - drop
        if length <= 0 or length % setup.align:
            return False
        for number, group in enumerate(setup.groups):
            if group.kind == "mamba":
                if not self.holds(number, self.at(tokens, length), tier):
                    return False
            elif group.kind != "full_attention":
                end = self.depth(tokens) - max(0, drop - group.step)
                rows = range(end, 0, -group.step)[: group.need + (drop > 0)]
                if not all(self.holds(number, self.at(tokens, one), tier) for one in rows):
                    return False
        return True


class Reader:
    """What journal events say is held."""

    def __init__(self) -> None:
        self.rule: Reuse | None = None
        self.chains: dict[int, dict[int, int]] = {}
        self.ends: dict[int, set[int]] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Cleared():
                    self.__init__()  # type: ignore[misc]
                case Reuse():
                    assert self.rule is None
                    self.rule = event
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)

    def _store(self, event: Stored) -> None:
        if event.tier >= ENDS:
            ends = self.ends.setdefault(event.tier - ENDS, set())
            assert event.parent == ROOT
            assert ends.isdisjoint(unpack_hashes(event.hashes))
            ends.update(unpack_hashes(event.hashes))
            return
        chain, parent = self.chains.setdefault(event.tier, {}), event.parent
        for one in unpack_hashes(event.hashes):
            assert parent == ROOT or parent in chain
            assert one not in chain
            chain[one] = parent
            parent = one

    def _remove(self, event: Removed) -> None:
        for one in unpack_hashes(event.hashes):
            if event.tier >= ENDS:
                self.ends[event.tier - ENDS].remove(one)
            else:
                assert one not in self.chains[event.tier].values()
                del self.chains[event.tier][one]


def engine_hash(tokens: Tokens) -> int:
    return xxh3_64_intdigest(repr(tokens).encode())


def packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


class Engine:
    """Publishes what a plan says, as vLLM does, and tells the model."""

    def __init__(self, setup: Setup) -> None:
        self.model = Model(setup)
        self.setup = setup

    def store(
        self, prompt: Tokens, skip: int, tier: int, order: Sequence[int]
    ) -> list[EngineEvent]:
        """Store a prompt behind the longest part of it that every full group holds, or anew."""
        self.model.tiers.add(tier)
        found = [self._stored(group, prompt, skip, tier) for group in order]
        return [event for event in found if event is not None]

    def _stored(self, group: int, prompt: Tokens, skip: int, tier: int) -> EngineEvent | None:
        one, ahead = self.setup.groups[group], self.setup.lookahead
        size = one.step * UNIT
        blocks = (len(prompt) - ahead) // size
        ends = [prompt[: (at + 1) * size + ahead] for at in range(blocks)]
        if one.kind == "sliding_window":
            kept = ends[min(skip, max(0, blocks - 1)) :]
        else:
            kept = ends[-1:] if one.kind == "mamba" else ends
        if not blocks:
            return None
        self.model.held.update((group, end, tier) for end in kept)
        return EngineStored(
            hashes=tuple(map(engine_hash, kept)),
            parent=None,
            tokens=packed(prompt[: blocks * size]),
            block_size=size,
            tier=tier,
            group=group,
            kind=one.kind,
            window=one.window,
            lookahead=tuple(packed(end[len(end) - ahead :]) for end in kept) if ahead else (),
        )

    def remove(self, which: int, count: int) -> list[EngineEvent]:
        held = sorted(one for one, times in self.model.held.items() if times > 0)
        gone = [held[(which + at) % len(held)] for at in range(min(count, len(held)))]
        self.model.held.subtract(gone)
        return [EngineRemoved((engine_hash(tokens),), tier, group) for group, tokens, tier in gone]


setups = st.builds(
    Setup,
    st.lists(
        st.one_of(
            st.builds(Kind, st.just("full_attention"), st.sampled_from([1, 1, 2])),
            st.builds(
                Kind, st.just("sliding_window"), st.sampled_from([1, 1, 2]), st.integers(1, 12)
            ),
            st.builds(Kind, st.just("mamba"), st.sampled_from([1, 1, 2, 4])),
            st.builds(Kind, st.just("chunked_local_attention"), st.just(1)),
        ),
        min_size=1,
        max_size=4,
    )
    .map(tuple)
    .filter(lambda groups: math.gcd(*(one.step for one in groups)) == 1),
    st.sampled_from([0, 0, 0, 1, 3]),
    st.sampled_from([False, False, True]),
).filter(
    lambda setup: bool(
        len(setup.groups) > len(setup.full) or len(setup.full) > 1 or setup.lookahead or setup.drops
    )
)
plans = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "remove", "offload", "clear"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple),
        st.integers(0, 50),
        st.integers(1, 3),
    ),
    max_size=20,
)


def key_of(tokens: Tokens, ahead: int) -> int:
    depth = (len(tokens) - ahead) // UNIT
    content = sequence_hashes(list(tokens[: depth * UNIT]), UNIT)[-1]
    if not ahead:
        return content
    return extend_hash(content, lookahead_digest(packed(tokens[depth * UNIT :])))


class Twins:
    """A naive cache and the compiled one, told the same: they answer alike."""

    def __init__(
        self, setup: Setup, batch: list[EngineEvent], *, hidden: int = closure.MAX_HIDDEN
    ) -> None:
        def decode(_: bytes) -> EngineBatch:
            return EngineBatch(0.0, 0, tuple(batch))

        self._both = [
            one(UNIT, decode=decode, drops=setup.drops, max_hidden=hidden)
            for one in (NaiveEngineCache, EngineCache)
        ]

    def take(self, payload: bytes) -> list[Event]:
        answers = [one.take(payload) for one in self._both]
        assert answers[0] == answers[-1]
        assert self._both[0].statistics() == self._both[-1].statistics()
        return answers[0]

    def dump(self) -> list[Event]:
        dumps = [one.dump() for one in self._both]
        assert dumps[0] == dumps[-1]
        return dumps[0]


def check(cache: Twins, reader: Reader, model: Model) -> None:
    ahead = model.setup.lookahead
    dumped = Reader()
    dumped.take(cache.dump())
    assert (dumped.rule, dumped.chains, dumped.ends) == (
        reader.rule,
        {tier: chain for tier, chain in reader.chains.items() if chain},
        {tier: ends for tier, ends in reader.ends.items() if ends},
    )
    for tier in model.tiers:
        contents = {one[: len(one) - ahead] for one in model.chain(tier)}
        chain = {sequence_hashes(list(one), UNIT)[-1] for one in contents}
        assert set(reader.chains.get(tier, {})) == chain
        assert reader.ends.get(tier, set()) == {key_of(one, ahead) for one in model.ends(tier)}


@given(setups, plans, st.randoms(use_true_random=False))
def test_hits_end_where_every_group_lets_them(setup: Setup, plan: list, rng: object) -> None:  # type: ignore[type-arg]
    engine = Engine(setup)
    batch: list[EngineEvent] = []
    cache = Twins(setup, batch)
    reader = Reader()
    everything = tuple(at % 2 for at in range(16 + setup.lookahead))
    order = list(range(len(setup.groups)))
    batch[:] = [*engine.store(everything, 0, 0, order), EngineCleared()]
    reader.take(cache.take(b""))
    engine.model.held.clear()

    for action, prompt, which, count in plan:
        whole = (*(token for one in prompt for token in (one, 7)), which % 2, 7, 9)
        if action == "clear":
            engine.model.held.clear()
            batch[:] = [EngineCleared()]
            reader.take(cache.take(b""))
            engine.model.tiers = {0}
            continue
        if action == "remove":
            batch[:] = engine.remove(which, count)
        else:
            rng.shuffle(order)  # type: ignore[attr-defined]
            batch[:] = engine.store(
                whole, which % 4, 0 if action == "store" else count % 2 + 1, order
            )
        reader.take(cache.take(b""))
        check(cache, reader, engine.model)


def whole(count: int) -> bytes:
    return packed([one % 3 for one in range(count)])


loose = st.one_of(
    st.builds(
        lambda hashes, parent, group, tier, size, blocks: EngineStored(
            hashes=tuple(hashes),
            parent=parent,
            tokens=whole(size * (len(hashes) + (blocks if group in (1, 2) else 0))),
            block_size=size,
            tier=tier,
            group=group,
            kind=("full_attention", "sliding_window", "mamba", "full_attention")[group],
            window=6,
        ),
        st.lists(st.integers(0, 9), max_size=4),
        st.none() | st.integers(0, 9),
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from([2, 2, 4]),
        st.integers(0, 3),
    ),
    st.builds(
        lambda hashes, tier, group: EngineRemoved(tuple(hashes), tier, group),
        st.lists(st.integers(0, 9), max_size=4),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    st.just(EngineCleared()),
)


@given(
    st.lists(st.lists(loose, max_size=4), max_size=20),
    st.sampled_from([False, True]),
    st.integers(0, 3),
)
def test_both_follow_alike_what_no_engine_would_say(
    reported: list[list[EngineEvent]], drops: bool, hidden: int
) -> None:
    batch: list[EngineEvent] = []
    patches = [
        mock.patch.object(residency, "MOST_BLOCKS", 9),
        mock.patch.object(residency, "MOST_REFERENCES", 3),
        mock.patch.object(closure, "MAX_RUN", 3),
        mock.patch("kvmesh.core.engines.kv_events.group_hits.MAX_RUN", 3),
    ]
    for patch in patches:
        patch.start()
    try:
        cache = Twins(Setup((), drops=drops), batch, hidden=hidden)
        for one in reported:
            batch[:] = one
            cache.take(b"")
        cache.dump()
    finally:
        for patch in patches:
            patch.stop()
