"""Engine events against a multiset: which content is held in which tier or nearer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.engines.engine_events import EngineCleared, EngineRemoved, EngineStored
from kvmesh.core.engines.kv_events.residency import Residency
from kvmesh.core.engines.kv_events.tier_table import (
    Change,
    Dropped,
    Emptied,
    Opened,
    TierStored,
)

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
    """What the changes say is held, per tier; each change must be a change."""

    def __init__(self) -> None:
        self.held: dict[int, dict[int, int]] = {}

    def take(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, Emptied):
                self.held.clear()
            elif isinstance(change, Opened):
                assert change.tier not in self.held
                self.held[change.tier] = self.held.get(change.nearer, {}).copy()
            elif isinstance(change, TierStored):
                table, parent = self.held.setdefault(change.tier, {}), change.parent
                for block in change.hashes:
                    assert block not in table
                    table[block] = parent
                    parent = block
            else:
                assert isinstance(change, Dropped)
                for block in change.hashes:
                    del self.held[change.tier][block]


@given(steps)
def test_every_tier_holds_what_was_stored_there_or_nearer_more_often_than_removed(
    plan: list[tuple[str, Prefix, int, int]],
) -> None:
    residency, tables = Residency(BLOCK_SIZE), Tables()
    model: Counter[tuple[Prefix, int]] = Counter()
    opened = {0}

    for kind, prefix, tier, length in plan:
        known = {held for held, _ in model}
        if kind == "store":
            event, run = stored(prefix, length, tier)
            opened.add(tier)
            if event.parent is None or prefix[: len(prefix) - len(run)] in known:
                model.update((held, tier) for held in run)
            tables.take(list(residency.apply(event)))
        elif kind == "offload":
            opened.add(tier)
            model.update([(prefix, tier)] if prefix in known else [])
            notice = EngineStored((engine_hash(prefix),), None, b"", 0, tier)
            tables.take(list(residency.apply(notice)))
        elif kind == "remove":
            model = Counter(model - Counter([(prefix, tier)]))
            tables.take(list(residency.apply(EngineRemoved((engine_hash(prefix),), tier))))
        else:
            model.clear()
            opened = {0}
            tables.take(list(residency.apply(EngineCleared())))

        for upto in opened:
            expected = {held for held, at in model if at <= upto}
            table = tables.held.get(upto, {})
            assert set(table) == {content(held) for held in expected}
            for held in expected:
                parent = content(held[:-1]) if len(held) > 1 else ROOT
                assert table[content(held)] == parent
        assert residency.statistics().blocks == len({held for held, _ in model})
