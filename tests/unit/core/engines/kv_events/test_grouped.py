import struct
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import pytest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import residency
from kvmesh.core.engines.kv_events.cache import EngineCache, OddEvents
from kvmesh.core.engines.kv_events.compiled_groups import new_table
from kvmesh.core.engines.kv_events.group_table import GroupTable
from kvmesh.core.engines.kv_events.grouped import GroupedCache

TOKENS = list(range(16))
H = sequence_hashes(TOKENS, 4)


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int] = TOKENS,
    *,
    group: int = 0,
    kind: str | None = "full_attention",
    parent: int | None = None,
    size: int = 4,
    tier: int = 0,
    window: int | None = None,
    extras: tuple[int, ...] = (),
    lookahead: tuple[bytes, ...] = (),
) -> EngineStored:
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return EngineStored(
        *(tuple(hashes), parent, packed, size, tier, group, kind),
        window=window,
        extras=extras,
        lookahead=lookahead,
    )


def state(hashes: Sequence[int], tokens: Sequence[int] = TOKENS, **more: int) -> EngineStored:
    return stored(hashes, tokens, group=1, kind="mamba", **more)  # type: ignore[arg-type]


def chain(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def ends(*hashes: int, tier: int = 0) -> Stored:
    return Stored(ROOT, pack_hashes(sorted(hashes)), ENDS + tier)


Make = Callable[..., GroupedCache]


@pytest.fixture(params=[new_table, GroupTable])
def make(request: pytest.FixtureRequest) -> Make:
    """What makes a cache over the table that fits, or over the one that fits all hashes."""
    return partial(GroupedCache, new_table=request.param)


FULL = stored((11, 12, 13, 14))
STATE = state((14,))
BATCHES = [
    EngineBatch(0.0, 0, (FULL, STATE)),
    EngineBatch(0.0, 0, (stored((11, 12, 13, 14), kind=None),)),
    EngineBatch(0.0, 0, (EngineCleared(),)),
]


def test_the_first_batch_begins_with_the_rule_and_hashes_of_one_group_serve_another(
    make: Make,
) -> None:
    cache = make()

    reported = cache.take([STATE, FULL])

    assert reported == [Cleared(), Reuse(), chain(ROOT, *H), ends(H[3])]
    assert (cache.dump(), cache.take([state((12,), ())])) == (reported[1:], [ends(H[1])])
    assert (cache.block_size, cache.visible(), cache.statistics().blocks) == (4, 4, 6)


def test_ends_leave_before_the_chain_and_come_behind_it(make: Make) -> None:
    cache = make()
    cache.take([FULL, STATE])

    gone = cache.take([EngineRemoved((14,)), state((13,), ())])

    assert gone == [Removed(pack_hashes(H[3:]), ENDS), Removed(pack_hashes(H[3:])), ends(H[2])]
    assert cache.take([EngineRemoved((14, 99), 0, 1), EngineRemoved((1,), 0, 7)]) == []
    assert cache.statistics().unknown_removals == 2


def test_what_was_told_before_the_cache_was_cleared_is_void(make: Make) -> None:
    cache = make()
    cache.take([FULL, STATE])

    assert cache.take([state((12,), ()), EngineCleared(), FULL]) == [
        Cleared(), Reuse(), chain(ROOT, *H),
    ]  # fmt: skip
    assert cache.clear() == [Cleared(), Reuse()]
    assert cache.take([STATE]) == [], "its prefix is not visible without the full group"
    assert cache.statistics().blocks == 1


def test_a_group_that_is_met_later_gives_another_rule_and_all_is_told_anew(make: Make) -> None:
    cache = make()
    cache.take([stored((11, 12, 13, 14), kind="mla_attention")])

    reported = cache.take([STATE])

    assert reported == [Cleared(), Reuse(), chain(ROOT, *H), ends(H[3])]
    assert cache.dump() == reported[1:]


def test_a_farther_tier_holds_what_nearer_ones_do(make: Make) -> None:
    cache = make()
    cache.take([FULL, STATE])

    reported = cache.take([EngineStored((13,), None, b"", 0, 1, 1)])

    assert reported == [chain(ROOT, *H, tier=1), ends(H[2], H[3], tier=1)]
    assert cache.take([EngineRemoved((14,), 0, 1)]) == [
        Removed(pack_hashes(H[3:]), ENDS),
        Removed(pack_hashes(H[3:]), ENDS + 1),
    ]
    assert len(cache.closures()) == 2


def test_several_blocks_in_one_are_held_in_each(make: Make) -> None:
    cache = make()
    cache.take([FULL, stored((14,), group=1, kind="sliding_window", window=5)])
    cache.take([EngineRemoved((11, 12, 13, 14)), EngineRemoved((14,), 0, 1)])

    reported = cache.take(
        [
            stored((24,), size=16, tier=1),
            stored((24,), size=16, tier=1, group=1, kind="sliding_window", window=5),
        ]
    )

    assert reported == [chain(ROOT, *H, tier=1), ends(*H, tier=1)]
    assert cache.take([EngineRemoved((24,), 1)])[1:] == [Removed(pack_hashes(H[::-1]), 1)]


@pytest.mark.parametrize(
    ("event", "counted"),
    [
        (EngineStored((99,), None, b"", 0, 0, 1), "placeholders"),
        (EngineStored((99,), None, b"", 0, 0, 5), "placeholders"),
        (stored((99,), TOKENS[:2], size=2, parent=14), "partial_blocks"),
        (stored((99,), parent=98), "orphans"),
        (state((99,), TOKENS, parent=98), "orphans"),
        (stored((99,), group=1, kind="mamba", extras=(7,)), "orphans"),
    ],
)
def test_what_cannot_be_placed_is_counted_and_left_out(
    event: EngineStored, counted: str, make: Make
) -> None:
    cache = make()
    cache.take([FULL, STATE])
    before = cache.dump()

    cache.take([event])

    assert (cache.dump(), getattr(cache.statistics(), counted)) == (before, 1)


def test_hashes_that_cover_tokens_behind_them_need_these_to_be_placed(make: Make) -> None:
    cache = make()
    ahead = tuple(struct.pack("<I", token) for token in (4, 8, 12, 90))
    cache.take([stored((11, 12, 13, 14), lookahead=ahead)])

    assert cache.dump()[:2] == [Reuse(1), chain(ROOT, *H)]
    assert cache.take([stored((15,), TOKENS[:4])]) == []
    other = tuple(struct.pack("<I", token) for token in (4, 8, 12, 91))
    assert [type(one) for one in cache.take([stored((11, 12, 13, 24), lookahead=other)])] == [
        Stored
    ]
    gone = [Removed(pack_hashes(H[3:]))]
    assert [one for one in cache.take([EngineRemoved((14,))]) if one in gone] == []
    assert [one for one in cache.take([EngineRemoved((24,))]) if one in gone] == gone


def test_a_hash_keeps_its_first_content_and_unused_boundaries_go(make: Make) -> None:
    cache = make()
    cache.take([FULL, STATE])

    assert cache.take([stored((11,), [7, 7, 7, 7])]) == []
    assert cache.take([stored((31, 31), [1, 2, 3, 4, 5, 6, 7, 8])]) != []
    assert cache.take([EngineRemoved((31, 31))]) != []
    assert cache.dump() == [Reuse(), chain(ROOT, *H), ends(H[3])]


def test_blocks_beyond_the_bound_are_not_followed(
    monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(residency, "MOST_BLOCKS", 4)
    cache = make()

    cache.take([FULL, STATE])
    assert (cache.statistics().blocks, cache.statistics().crowded) == (3, 2)
    cache.take([stored((21, 22), [9] * 8)])
    assert cache.statistics().crowded == 4


def test_an_engine_that_turns_out_to_have_groups_keeps_what_it_held() -> None:
    before: list[EngineEvent] = [
        stored((11, 12), TOKENS[:8], kind=None),
        stored((13,), TOKENS[8:12], kind=None, parent=12, tier=1),
        stored((21,), [5, 5, 5, 5], kind=None),
        stored((22,), [6, 6, 6, 6], kind=None, parent=21),
        EngineRemoved((21, 77)),
    ]
    batches = [
        EngineBatch(0.0, 0, tuple(before)),
        EngineBatch(0.0, 0, (state((12,), ()), state((14,)))),
    ]
    cache = EngineCache(4, decode=lambda payload: batches[payload[0]])
    cache.take(b"\0")

    reported = cache.take(b"\1")

    assert reported[:4] == [Cleared(), Reuse(), chain(ROOT, *H[:2]), chain(ROOT, *H[:3], tier=1)]
    assert reported[4:] == [ends(H[1]), ends(H[1], tier=1)]
    statistics = cache.statistics()
    assert statistics.residency.unknown_removals == 1
    assert [group.kind for group in statistics.groups] == ["", "mamba"]


def test_without_a_full_group_what_is_held_and_all_before_it_is_the_chain(make: Make) -> None:
    cache = make()

    assert cache.take([STATE])[2:] == [chain(ROOT, *H), ends(H[3])]
    gone = cache.take([EngineRemoved((14,), 0, 1)])
    assert gone == [Removed(pack_hashes(H[3:]), ENDS), Removed(pack_hashes(H[::-1]))]


def test_of_two_full_groups_both_must_hold_a_block(make: Make) -> None:
    cache = make()
    second = stored((11, 12), TOKENS[:8], group=1)

    assert cache.take([FULL, second])[2:] == [chain(ROOT, *H[:2]), ends(*H[:2])]
    assert cache.take([EngineRemoved((13,))]) == []
    gone = [Removed(pack_hashes(H[1:2]), ENDS), Removed(pack_hashes(H[1:2]))]
    assert cache.take([EngineRemoved((12,), 0, 1)]) == gone


def test_an_odd_event_is_counted_and_the_rest_of_its_batch_followed() -> None:
    cache = EngineCache()
    whole = ["BlockStored", [1], None, [5, 6], 2]

    reported = cache.take(
        msgspec.msgpack.encode([0.0, [["BlockStored", [2], None, "x", 2], whole], 0])
    )

    assert (len(reported), cache.statistics().odd) == (1, (("engine event: token_ids", 1),))
    assert (cache.complete, cache.statistics().lost) == (True, 0)


def test_reasons_are_told_apart_up_to_a_bound() -> None:
    odd = OddEvents()
    odd.add(["often", "often", *(f"reason {number:02}" for number in range(40))])

    assert [odd.is_update(), odd.is_update()] == [True, False]
    odd.add(["often"] * 41)
    assert not odd.is_update()
    odd.add(["often"])
    assert odd.is_update()
    counts = odd.statistics()
    assert (len(counts), counts[0], dict(counts)["often"]) == (33, ("often", 44), 44)


def test_an_engine_that_restarts_is_taken_for_one_of_one_group_again() -> None:
    cache = EngineCache(4, decode=lambda payload: BATCHES[payload[0]])
    cache.take(b"\0")
    grouped = cache.statistics()
    assert cache.lose() == [Cleared(), Reuse()]
    lost = cache.statistics()
    cache.take(b"\2")
    cleared = cache.statistics()
    was_grouped = cache.is_grouped

    assert cache.restart() == [Cleared()]
    assert (was_grouped, cache.is_grouped) == (True, False)
    assert [len(one.groups) for one in (grouped, lost, cleared)] == [2, 2, 2]
    assert [one.complete for one in (grouped, lost, cleared)] == [True, False, True]
    assert (cache.take(b"\1"), cache.statistics().groups) == ([chain(ROOT, *H)], ())


def test_a_dropped_block_is_one_more_behind_each_end(make: Make) -> None:
    cache = make(4, drops=True)

    assert cache.take(BATCHES[1].events) == [Cleared(), Reuse(0, 1), chain(ROOT, *H), ends(*H[1:])]
    assert [one.blocks for one in cache.groups()] == [4]
    assert cache.take([EngineRemoved((13,))])[0] == Removed(pack_hashes(sorted(H[2:])), ENDS)


def test_block_sizes_whose_common_multiple_is_no_number_of_the_compiled_core_are_followed() -> None:
    primes = (1009, 1013, 1019, 1021)
    batch = EngineBatch(
        0.0,
        0,
        tuple(
            stored(
                (at,), range(size), group=at, kind="mamba" if at else "full_attention", size=size
            )
            for at, size in enumerate(primes)
        ),
    )
    cache = EngineCache(decode=lambda _: batch)

    reported = cache.take(b"")

    assert (reported[:2], len(cache.statistics().groups)) == ([Cleared(), Reuse()], 4)
    assert not any(isinstance(one, Stored) and one.tier >= ENDS for one in reported[2:])


def test_offloaded_blocks_longer_than_can_be_count_where_they_end(make: Make) -> None:
    cache = make(4)
    cache.take([state((12, 13, 14), TOKENS), stored((11,), TOKENS[:4])])

    whole = cache.take([stored((14,), (), size=4 * 1024, tier=1)])
    assert chain(H[0], *H[1:], tier=1) in whole, "it covers all before it"

    cache = make(4)
    cache.take([state((12, 13, 14), TOKENS), stored((11,), TOKENS[:4])])
    assert cache.take([stored((14,), (), size=1 << 30, tier=1)]) == [chain(ROOT, H[0], tier=1)]
