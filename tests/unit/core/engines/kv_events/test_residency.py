import struct

import pytest

from kvmesh.core.blocks.events import ROOT, Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import (
    extend_hash,
    namespace_root,
    pack_hashes,
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
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.residency import ResidencyStatistics
from kvmesh.core.engines.kv_events.saved_cache import SavedBlock, SavedCache, pack_block

TOKENS = list(range(8))
FIRST, SECOND = sequence_hashes(TOKENS, 4)


def stored(
    *hashes: int,
    parent: int | None = None,
    tokens: list[int] | None = None,
    block_size: int = 4,
    tier: int = 0,
    group: int = 0,
    lora: str | None = None,
    salt: str | None = None,
    extras: tuple[int, ...] = (),
) -> EngineStored:
    ids = TOKENS if tokens is None else tokens
    return EngineStored(
        hashes=hashes,
        parent=parent,
        tokens=struct.pack(f"<{len(ids)}I", *ids),
        block_size=block_size,
        tier=tier,
        group=group,
        lora=lora,
        salt=salt,
        extras=extras,
    )


class Engine:
    """An engine's cache, told one event after the other."""

    def __init__(self, block_size: int | None = None, *, secret: bytes = b"") -> None:
        self._cache = EngineCache(block_size, secret=secret)
        self.restart, self.load = self._cache.restart, self._cache.load

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    def apply(self, event: EngineEvent) -> list[Event]:
        return self._cache.fold(EngineBatch(0.0, None, (event,)))

    def statistics(self) -> ResidencyStatistics:
        return self._cache.statistics().residency


def held(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def gone(*hashes: int, tier: int = 0) -> Removed:
    return Removed(pack_hashes(hashes), tier)


def hashes_of(event: Event) -> tuple[int, ...]:
    assert isinstance(event, Stored | Removed)
    return tuple(unpack_hashes(event.hashes))


def test_engine_hashes_become_content_hashes_of_the_tokens() -> None:
    assert Engine(4).apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]


def test_a_later_store_continues_from_its_parents_content() -> None:
    engine = Engine(4)
    engine.apply(stored(11, tokens=TOKENS[:4]))

    assert engine.apply(stored(12, parent=11, tokens=TOKENS[4:])) == [held(FIRST, SECOND)]


def test_a_block_stored_twice_must_be_removed_twice() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert engine.apply(stored(12, parent=11, tokens=TOKENS[4:])) == []
    assert engine.apply(EngineRemoved((12,))) == []
    assert engine.apply(EngineRemoved((12,))) == [gone(SECOND)]


def test_a_store_under_an_unknown_parent_is_counted_and_ignored() -> None:
    engine = Engine(4)

    assert engine.apply(stored(12, parent=99, tokens=TOKENS[4:])) == []
    assert engine.statistics().orphans == 1


def test_removing_what_is_not_held_is_counted_and_ignored() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert engine.apply(EngineRemoved((77,))) == []
    assert engine.apply(EngineRemoved((11,), tier=1)) == []
    assert engine.statistics().unknown_removals == 2
    assert engine.apply(EngineRemoved((77, 12))) == [gone(SECOND)]


@pytest.mark.parametrize(("lora", "salt"), [("adapter", None), (None, "tenant"), ("a", "t")])
def test_a_namespace_changes_every_content_hash(lora: str | None, salt: str | None) -> None:
    root = namespace_root(lora=lora or "", cache_salt=salt or "", secret=b"key")

    [reported] = Engine(4, secret=b"key").apply(stored(11, 12, lora=lora, salt=salt))

    assert reported == held(ROOT, *sequence_hashes(TOKENS, 4, root))
    assert root != ROOT


def test_opaque_extras_change_their_block_and_all_after_it() -> None:
    [reported] = Engine(4).apply(stored(11, 12, extras=(0, 5)))

    second = sequence_hashes(TOKENS[4:], 4, extend_hash(FIRST, 5))[0]
    assert reported == held(ROOT, FIRST, second)


def test_extras_of_a_namespace_stand_behind_its_root() -> None:
    root = namespace_root(cache_salt="tenant")

    [reported] = Engine(4).apply(stored(11, 12, salt="tenant", extras=(5, 0)))

    assert reported == held(ROOT, *sequence_hashes(TOKENS, 4, extend_hash(root, 5)))


def test_extras_on_a_continued_sequence_fold_into_its_parents_content() -> None:
    engine = Engine(4)
    engine.apply(stored(11, tokens=TOKENS[:4]))

    [reported] = engine.apply(stored(12, parent=11, tokens=TOKENS[4:], extras=(5,)))

    assert reported == held(FIRST, *sequence_hashes(TOKENS[4:], 4, extend_hash(FIRST, 5)))


def test_one_engine_hash_may_stand_for_two_namespaces() -> None:
    engine = Engine(4)
    plain, salted = (
        hashes_of(event)
        for salt in (None, "tenant")
        for event in engine.apply(stored(11, 12, salt=salt))
    )

    assert engine.apply(stored(11, 12, salt="tenant")) == []
    more = engine.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="tenant"))
    assert [one.parent for one in more if isinstance(one, Stored)] == [salted[-1]]

    assert engine.apply(EngineRemoved((12,))) == [gone(*plain[1:])]
    assert engine.apply(EngineRemoved((12, 12))) == [gone(*hashes_of(more[0]), *salted[1:])]


def test_a_shared_engine_hash_is_followed_in_the_namespace_its_sequence_began_in() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))
    engine.apply(stored(21, tokens=TOKENS[:4], salt="tenant"))
    [twin] = engine.apply(stored(12, parent=21, tokens=TOKENS[4:], salt="tenant"))

    [more] = engine.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="tenant"))

    assert isinstance(more, Stored)
    assert more.parent == hashes_of(twin)[-1] != SECOND


def test_three_namespaces_of_one_engine_hash_are_kept_apart() -> None:
    engine = Engine(4)
    for salt in (None, "b", "c"):
        engine.apply(stored(11, 12, salt=salt))

    more = engine.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="c"))
    assert [len(hashes_of(one)) for one in more] == [1]
    assert sum(len(engine.apply(EngineRemoved((11,)))) for _ in range(3)) == 3


def test_blocks_of_several_block_sizes_are_split() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert engine.apply(stored(50, block_size=8, tier=1)) == [held(ROOT, FIRST, SECOND, tier=1)]
    assert engine.apply(EngineRemoved((11, 12))) == [gone(SECOND, FIRST)]
    assert engine.apply(EngineRemoved((50,), tier=1)) == [gone(SECOND, FIRST, tier=1)]


def test_a_partial_block_is_counted_and_its_removal_ignored() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert engine.apply(stored(13, parent=12, tokens=[1, 2], block_size=2)) == []
    assert engine.apply(EngineRemoved((13,))) == []
    assert engine.statistics().partial_blocks == 1


def test_the_block_size_is_learned_from_events() -> None:
    engine = Engine()

    assert engine.apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]
    assert engine.block_size == 4


def test_events_win_over_a_wrong_configured_block_size() -> None:
    engine = Engine(16)

    assert engine.apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]
    assert engine.block_size == 4
    assert engine.statistics().mismatched_blocks == 2


@pytest.mark.parametrize("configured", [4, None])
def test_once_a_run_agreed_the_block_size_stays(configured: int | None) -> None:
    engine = Engine(configured)
    engine.apply(stored(11, 12))

    reported = engine.apply(stored(21, 22, tokens=[7] * 16, block_size=8))

    assert engine.block_size == 4
    assert [len(hashes_of(one)) for one in reported] == [4]
    assert engine.statistics().mismatched_blocks == 0


def test_an_engine_that_began_anew_may_have_another_block_size() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert list(engine.restart()) == [Cleared()]
    reported = engine.apply(stored(21, 22, tokens=[7] * 16, block_size=8))

    assert engine.block_size == 8
    assert [len(hashes_of(one)) for one in reported] == [2]


def test_blocks_of_no_size_are_refused() -> None:
    engine = Engine()

    with pytest.raises(ValueError, match="1 blocks of 0 tokens"):
        engine.apply(stored(11, block_size=0))
    assert engine.apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]


def test_offloaded_blocks_do_not_tell_the_block_size() -> None:
    engine = Engine(4)

    reported = engine.apply(stored(50, 51, tokens=TOKENS * 2, block_size=8, tier=1))

    assert engine.block_size == 4
    assert [len(hashes_of(one)) for one in reported] == [4]


def test_a_single_short_block_does_not_change_the_block_size() -> None:
    engine = Engine(4)

    assert engine.apply(stored(13, tokens=[1, 2], block_size=2)) == []
    assert engine.block_size == 4


def test_a_first_partial_block_does_not_fix_a_learned_block_size() -> None:
    engine = Engine()
    engine.apply(stored(13, tokens=[1, 2], block_size=2))
    engine.apply(stored(11, 12))

    assert engine.block_size == 4


def test_a_tier_lists_what_is_held_there_or_nearer() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    offloaded = engine.apply(stored(12, parent=11, tokens=TOKENS[4:], tier=1))

    assert offloaded == [held(ROOT, FIRST, SECOND, tier=1)]
    assert engine.apply(EngineRemoved((12,))) == [gone(SECOND)]
    assert engine.apply(EngineRemoved((12,), tier=1)) == [gone(SECOND, tier=1)]


def test_a_new_tier_takes_over_nothing_that_is_held_further_away() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12, tier=2))

    changes = engine.apply(stored(60, tokens=[9] * 4, tier=1))

    ninth = sequence_hashes([9] * 4, 4)
    assert changes == [held(ROOT, *ninth, tier=1), held(ROOT, *ninth, tier=2)]


def test_a_new_tier_takes_over_namespaces_that_share_an_engine_hash() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))
    engine.apply(stored(11, 12, salt="t"))

    changes = engine.apply(stored(60, tokens=[9] * 4, tier=2))

    assert all(isinstance(one, Stored) and one.tier == 2 for one in changes)
    assert [len(hashes_of(one)) for one in changes] == [2, 2, 1]
    engine.apply(EngineRemoved((11, 12)))
    [near, far] = engine.apply(EngineRemoved((11, 12)))
    assert isinstance(near, Removed)
    assert far == Removed(near.hashes, 2)
    assert near.tier == 0


def test_an_offload_notice_without_tokens_needs_a_known_hash() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    offloaded = engine.apply(stored(11, 99, tokens=[], block_size=0, tier=1))

    assert offloaded == [held(ROOT, FIRST, SECOND, tier=1)]
    assert engine.statistics().placeholders == 1
    assert engine.apply(EngineRemoved((11, 12))) == [
        gone(SECOND, FIRST),
        gone(SECOND, tier=1),
    ]


def test_an_empty_store_says_nothing() -> None:
    assert Engine(4).apply(stored(tokens=[], block_size=0)) == []


def test_only_the_first_group_counts() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12, group=1))

    assert engine.apply(stored(21, 22, group=2)) == []
    assert engine.apply(EngineRemoved((21,), group=2)) == []
    assert engine.statistics().ignored_groups == 3


def test_clearing_empties_every_tier() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12, tier=1))

    assert engine.apply(EngineCleared()) == [Cleared()]
    assert engine.statistics().blocks == 0
    assert engine.apply(stored(11, tokens=TOKENS[:4])) == [held(ROOT, FIRST)]


def test_a_saved_block_is_loaded_into_its_own_tier_and_those_further_away() -> None:
    near, far = (
        SavedBlock(11, ROOT, 0, (5,), (1, 0)),
        SavedBlock(12, ROOT, 0, (6,), (0, 1)),
    )
    engine = Engine(4)

    changes = engine.load(SavedCache(0, 4, (0, 1), pack_block(near) + pack_block(far)))

    reported = [(one.tier, hashes_of(one)) for one in changes if isinstance(one, Stored)]
    assert sorted((tier, one) for tier, hashes in reported for one in hashes) == [
        (0, 5),
        (1, 5),
        (1, 6),
    ]
