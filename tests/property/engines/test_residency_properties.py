"""Engine events against a multiset: which content is visible in which tier or nearer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import sequence_hashes, unpack_hashes
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.cache import EngineCache

BLOCK_SIZE = 2
Prefix = tuple[int, ...]

prefixes = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
steps = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "offload", "clear"]),
        prefixes,
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=30,
)


def engine_hash(prefix: Prefix) -> int:
    return hash(("engine", *prefix)) & (1 << 64) - 1


def tokens(block: int) -> list[int]:
    return [100 + block] * BLOCK_SIZE


def content(prefix: Prefix) -> int:
    return sequence_hashes([id_ for block in prefix for id_ in tokens(block)], BLOCK_SIZE)[-1]


def stored(prefix: Prefix, length: int, tier: int) -> tuple[EngineStored, list[Prefix]]:
    """Return the store of the last `length` blocks of `prefix`, and the prefixes it holds."""
    start = max(0, len(prefix) - length)
    run = [prefix[: end + 1] for end in range(start, len(prefix))]
    ids = [id_ for block in prefix[start:] for id_ in tokens(block)]
    event = EngineStored(
        hashes=tuple(map(engine_hash, run)),
        parent=engine_hash(prefix[:start]) if start else None,
        tokens=b"".join(id_.to_bytes(4, "little") for id_ in ids),
        block_size=BLOCK_SIZE,
        tier=tier,
    )
    return event, run


class Tables:
    """What the events say is held, per tier; each must be a change."""

    def __init__(self) -> None:
        self.cache = EngineCache(BLOCK_SIZE)
        self.held: dict[int, dict[int, int]] = {}

    def take(self, event: EngineEvent) -> None:
        for one in self.cache.fold(EngineBatch(0.0, None, (event,))):
            self._follow(one)

    def _follow(self, event: Event) -> None:
        if isinstance(event, Cleared):
            self.held.clear()
        elif isinstance(event, Stored):
            table, parent = self.held.setdefault(event.tier, {}), event.parent
            for block in unpack_hashes(event.hashes):
                assert block not in table
                table[block] = parent
                parent = block
        else:
            assert isinstance(event, Removed)
            for block in unpack_hashes(event.hashes):
                del self.held[event.tier][block]


def visible(held: set[Prefix]) -> set[Prefix]:
    """Return those whose every beginning is held, too."""
    return {one for one in held if all(one[:end] in held for end in range(1, len(one)))}


@given(steps)
def test_every_tier_shows_what_was_stored_there_or_nearer_more_often_than_removed(
    plan: list[tuple[str, Prefix, int, int]],
) -> None:
    tables = Tables()
    model: Counter[tuple[Prefix, int]] = Counter()
    opened = {0}

    for kind, prefix, tier, length in plan:
        known = {held for held, _ in model}
        if kind == "store":
            event, run = stored(prefix, length, tier)
            opened.add(tier)
            if event.parent is None or prefix[: len(prefix) - len(run)] in known:
                model.update((held, tier) for held in run)
            tables.take(event)
        elif kind == "offload":
            opened.add(tier)
            model.update([(prefix, tier)] if prefix in known else [])
            tables.take(EngineStored((engine_hash(prefix),), None, b"", 0, tier))
        elif kind == "remove":
            model = Counter(model - Counter([(prefix, tier)]))
            tables.take(EngineRemoved((engine_hash(prefix),), tier))
        else:
            model.clear()
            opened = {0}
            tables.take(EngineCleared())

        counts: list[int] = []
        for upto in sorted(opened):
            everything = {held for held, at in model if at <= upto}
            counts.append(len(everything))
            expected = visible(everything)
            table = tables.held.get(upto, {})
            assert set(table) == {content(held) for held in expected}
            for held in expected:
                parent = content(held[:-1]) if len(held) > 1 else ROOT
                assert table[content(held)] == parent
        statistics = tables.cache.statistics()
        assert statistics.residency.blocks == len({held for held, _ in model})
        reported = [one.held for one in statistics.closures if one.held]
        assert reported == [count for count in counts if count]
