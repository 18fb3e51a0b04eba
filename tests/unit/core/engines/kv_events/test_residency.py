import struct

import pytest

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import extend_hash, namespace_root, sequence_hashes
from kvmesh.core.engines.engine_events import EngineCleared, EngineRemoved, EngineStored
from kvmesh.core.engines.kv_events.residency import Residency
from kvmesh.core.engines.kv_events.saved_cache import SavedBlock, SavedCache, pack_block
from kvmesh.core.engines.kv_events.tier_table import Dropped, Emptied, Opened, TierStored

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


def test_engine_hashes_become_content_hashes_of_the_tokens() -> None:
    assert list(Residency(4).apply(stored(11, 12))) == [TierStored(ROOT, (FIRST, SECOND))]


def test_a_later_store_continues_from_its_parents_content() -> None:
    residency = Residency(4)
    residency.apply(stored(11, tokens=TOKENS[:4]))

    assert list(residency.apply(stored(12, parent=11, tokens=TOKENS[4:]))) == [
        TierStored(FIRST, (SECOND,))
    ]


def test_a_block_stored_twice_must_be_removed_twice() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.apply(stored(12, parent=11, tokens=TOKENS[4:]))) == []
    assert list(residency.apply(EngineRemoved((12,)))) == []
    assert list(residency.apply(EngineRemoved((12,)))) == [Dropped((SECOND,))]


def test_a_store_under_an_unknown_parent_is_counted_and_ignored() -> None:
    residency = Residency(4)

    assert list(residency.apply(stored(12, parent=99, tokens=TOKENS[4:]))) == []
    assert residency.statistics().orphans == 1


def test_removing_what_is_not_held_is_counted_and_ignored() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.apply(EngineRemoved((77,)))) == []
    assert list(residency.apply(EngineRemoved((11,), tier=1))) == []
    assert residency.statistics().unknown_removals == 2
    assert list(residency.apply(EngineRemoved((77, 12)))) == [Dropped((SECOND,))]


@pytest.mark.parametrize(("lora", "salt"), [("adapter", None), (None, "tenant"), ("a", "t")])
def test_a_namespace_changes_every_content_hash(lora: str | None, salt: str | None) -> None:
    root = namespace_root(lora=lora or "", cache_salt=salt or "", secret=b"key")

    [held] = Residency(4, secret=b"key").apply(stored(11, 12, lora=lora, salt=salt))

    assert held == TierStored(ROOT, tuple(sequence_hashes(TOKENS, 4, root)))
    assert root != ROOT


def test_opaque_extras_change_their_block_and_all_after_it() -> None:
    [held] = Residency(4).apply(stored(11, 12, extras=(0, 5)))

    second = sequence_hashes(TOKENS[4:], 4, extend_hash(FIRST, 5))[0]
    assert held == TierStored(ROOT, (FIRST, second))


def test_extras_of_a_namespace_stand_behind_its_root() -> None:
    root = namespace_root(cache_salt="tenant")

    [held] = Residency(4).apply(stored(11, 12, salt="tenant", extras=(5, 0)))

    assert held == TierStored(ROOT, tuple(sequence_hashes(TOKENS, 4, extend_hash(root, 5))))


def test_extras_on_a_continued_sequence_fold_into_its_parents_content() -> None:
    residency = Residency(4)
    residency.apply(stored(11, tokens=TOKENS[:4]))

    [held] = residency.apply(stored(12, parent=11, tokens=TOKENS[4:], extras=(5,)))

    assert held == TierStored(FIRST, tuple(sequence_hashes(TOKENS[4:], 4, extend_hash(FIRST, 5))))


def test_one_engine_hash_may_stand_for_two_namespaces() -> None:
    residency = Residency(4)
    [plain] = residency.apply(stored(11, 12))
    [salted] = residency.apply(stored(11, 12, salt="tenant"))
    assert isinstance(plain, TierStored)
    assert isinstance(salted, TierStored)

    assert list(residency.apply(stored(11, 12, salt="tenant"))) == []
    more = residency.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="tenant"))
    assert [one.parent for one in more if isinstance(one, TierStored)] == [salted.hashes[-1]]

    assert list(residency.apply(EngineRemoved((12,)))) == [Dropped(plain.hashes[1:])]
    assert list(residency.apply(EngineRemoved((12, 12)))) == [Dropped(salted.hashes[1:])]


def test_a_shared_engine_hash_is_followed_in_the_namespace_its_sequence_began_in() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))
    residency.apply(stored(21, tokens=TOKENS[:4], salt="tenant"))
    [twin] = residency.apply(stored(12, parent=21, tokens=TOKENS[4:], salt="tenant"))
    assert isinstance(twin, TierStored)

    [more] = residency.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="tenant"))

    assert isinstance(more, TierStored)
    assert more.parent == twin.hashes[-1] != SECOND


def test_three_namespaces_of_one_engine_hash_are_kept_apart() -> None:
    residency = Residency(4)
    for salt in (None, "b", "c"):
        residency.apply(stored(11, 12, salt=salt))

    more = residency.apply(stored(13, parent=12, tokens=TOKENS[:4], salt="c"))
    assert [len(one.hashes) for one in more if isinstance(one, TierStored)] == [1]
    assert sum(len(list(residency.apply(EngineRemoved((11,))))) for _ in range(3)) == 3


def test_blocks_of_several_block_sizes_are_split() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.apply(stored(50, block_size=8, tier=1))) == [Opened(1, 0)]
    assert list(residency.apply(EngineRemoved((11, 12)))) == [Dropped((FIRST, SECOND))]
    assert list(residency.apply(EngineRemoved((50,), tier=1))) == [Dropped((SECOND, FIRST), 1)]


def test_a_partial_block_is_counted_and_its_removal_ignored() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.apply(stored(13, parent=12, tokens=[1, 2], block_size=2))) == []
    assert list(residency.apply(EngineRemoved((13,)))) == []
    assert residency.statistics().partial_blocks == 1


def test_the_block_size_is_learned_from_events() -> None:
    residency = Residency()

    assert list(residency.apply(stored(11, 12))) == [TierStored(ROOT, (FIRST, SECOND))]
    assert residency.block_size == 4


def test_events_win_over_a_wrong_configured_block_size() -> None:
    residency = Residency(16)

    assert list(residency.apply(stored(11, 12))) == [TierStored(ROOT, (FIRST, SECOND))]
    assert residency.block_size == 4
    assert residency.statistics().mismatched_blocks == 2


@pytest.mark.parametrize("configured", [4, None])
def test_once_a_run_agreed_the_block_size_stays(configured: int | None) -> None:
    residency = Residency(configured)
    residency.apply(stored(11, 12))

    held = residency.apply(stored(21, 22, tokens=[7] * 16, block_size=8))

    assert residency.block_size == 4
    assert [len(one.hashes) for one in held if isinstance(one, TierStored)] == [4]
    assert residency.statistics().mismatched_blocks == 0


def test_an_engine_that_began_anew_may_have_another_block_size() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.restart()) == [Emptied()]
    held = residency.apply(stored(21, 22, tokens=[7] * 16, block_size=8))

    assert residency.block_size == 8
    assert [len(one.hashes) for one in held if isinstance(one, TierStored)] == [2]


def test_blocks_of_no_size_are_counted_and_ignored() -> None:
    residency = Residency()

    assert list(residency.apply(stored(11, block_size=0))) == []
    assert residency.statistics().partial_blocks == 1


def test_offloaded_blocks_do_not_tell_the_block_size() -> None:
    residency = Residency(4)

    held = list(residency.apply(stored(50, 51, tokens=TOKENS * 2, block_size=8, tier=1)))

    assert residency.block_size == 4
    assert [len(one.hashes) for one in held if isinstance(one, TierStored)] == [4]


def test_a_single_short_block_does_not_change_the_block_size() -> None:
    residency = Residency(4)

    assert list(residency.apply(stored(13, tokens=[1, 2], block_size=2))) == []
    assert residency.block_size == 4


def test_a_first_partial_block_does_not_fix_a_learned_block_size() -> None:
    residency = Residency()
    residency.apply(stored(13, tokens=[1, 2], block_size=2))
    residency.apply(stored(11, 12))

    assert residency.block_size == 4


def test_a_tier_lists_what_is_held_there_or_nearer() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    assert list(residency.apply(stored(11, tokens=TOKENS[:4], tier=1))) == [Opened(1, 0)]
    assert list(residency.apply(EngineRemoved((11,)))) == [Dropped((FIRST,))]
    assert list(residency.apply(EngineRemoved((11,), tier=1))) == [Dropped((FIRST,), 1)]


def test_a_new_tier_takes_over_nothing_that_is_held_further_away() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12, tier=2))

    changes = residency.apply(stored(60, tokens=[9] * 4, tier=1))

    ninth = tuple(sequence_hashes([9] * 4, 4))
    assert list(changes) == [Opened(1, 0), TierStored(ROOT, ninth, 1), TierStored(ROOT, ninth, 2)]


def test_a_new_tier_takes_over_namespaces_that_share_an_engine_hash() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))
    residency.apply(stored(11, 12, salt="t"))

    changes = residency.apply(stored(60, tokens=[9] * 4, tier=2))

    assert changes[0] == Opened(2, 0)
    residency.apply(EngineRemoved((11, 12)))
    [near, far] = residency.apply(EngineRemoved((11, 12)))
    assert isinstance(near, Dropped)
    assert isinstance(far, Dropped)
    assert (near.tier, far.tier) == (0, 2)
    assert far.hashes == near.hashes


def test_an_offload_notice_without_tokens_needs_a_known_hash() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12))

    offloaded = residency.apply(stored(11, 99, tokens=[], block_size=0, tier=1))

    assert list(offloaded) == [Opened(1, 0)]
    assert residency.statistics().placeholders == 1
    assert list(residency.apply(EngineRemoved((11, 12)))) == [
        Dropped((FIRST, SECOND)),
        Dropped((SECOND,), 1),
    ]


def test_an_empty_store_says_nothing() -> None:
    assert list(Residency(4).apply(stored(tokens=[], block_size=0))) == []


def test_only_the_first_group_counts() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12, group=1))

    assert list(residency.apply(stored(21, 22, group=2))) == []
    assert list(residency.apply(EngineRemoved((21,), group=2))) == []
    assert residency.statistics().ignored_groups == 3


def test_clearing_empties_every_tier() -> None:
    residency = Residency(4)
    residency.apply(stored(11, 12, tier=1))

    assert list(residency.apply(EngineCleared())) == [Emptied()]
    assert residency.statistics().blocks == 0
    assert list(residency.apply(stored(11, tokens=TOKENS[:4]))) == [TierStored(ROOT, (FIRST,))]


def test_a_saved_block_is_loaded_into_its_own_tier_and_those_further_away() -> None:
    near, far = (
        SavedBlock(11, ROOT, 0, (5,), (1, 0)),
        SavedBlock(12, ROOT, 0, (6,), (0, 1)),
    )
    residency = Residency(4)

    changes = residency.load(SavedCache(0, 4, (0, 1), pack_block(near) + pack_block(far)))

    stored = [(one.tier, one.hashes) for one in changes if isinstance(one, TierStored)]
    assert sorted((tier, one) for tier, hashes in stored for one in hashes) == [
        (0, 5),
        (1, 5),
        (1, 6),
    ]
