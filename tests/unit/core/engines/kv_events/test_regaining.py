import msgspec
import pytest

from kvmesh.core.blocks.hashing import extend_hash, sequence_hashes
from kvmesh.core.engines.kv_events import regaining
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.regaining import (
    PROOF_RUNS,
    SETTLE_S,
    CacheHit,
    Regaining,
)

TOKENS = [one for number in range(6) for one in (number, number)]
HASHES = sequence_hashes(TOKENS, 2)


def store(first: int, *, parent: int | None, blocks: int = 2, **changes: object) -> object:
    """Store blocks of `TOKENS` from block `first` on, as 11, 12, …"""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(10 + first, 10 + first + blocks)),
        "parent_block_hash": parent,
        "token_ids": TOKENS[2 * first : 2 * (first + blocks)],
        "block_size": 2,
        **changes,
    }


def remove(*hashes: int) -> object:
    return {"type": "BlockRemoved", "block_hashes": list(hashes)}


def batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), 0])


@pytest.fixture
def lost() -> Regaining:
    """One that lost its engine's history."""
    made = Regaining(EngineCache(2))
    made.lose()
    return made


def visible(one: Regaining) -> int:
    return one._cache.statistics().visible_blocks


def hit(cached: int = 2, *, lasted_s: float = 0.1) -> CacheHit:
    return CacheHit(HASHES, cached, lasted_s)


def test_an_answer_places_the_run_that_was_stored_for_its_prompt(lost: Regaining) -> None:
    lost.take(batch(store(2, parent=11)), 1.0)
    lost.take(batch(store(4, parent=13, blocks=1)), 1.0)
    assert visible(lost) == 0

    lost.served(hit(), 1.1)
    assert lost.settle(1.1) == []
    lost.settle(1.1 + SETTLE_S)

    assert visible(lost) == 5
    lost.take(batch(remove(11)), 2.0)
    assert visible(lost) == 0


@pytest.mark.parametrize(
    "event",
    [
        store(2, parent=11, medium="CPU"),
        store(2, parent=11, extra_keys=[[7], None]),
        store(3, parent=11),
    ],
)
def test_a_run_of_another_place_or_tier_is_not_placed(lost: Regaining, event: object) -> None:
    lost.take(batch(event), 1.0)
    lost.served(hit(), 1.1)

    assert lost.settle(9.0) == []


def test_opaque_extras_count_where_they_stand() -> None:
    one = Regaining(EngineCache(2))
    one.lose()
    one.take(batch(store(2, parent=11, extra_keys=[[7], None])), 1.0)
    seed = extend_hash(HASHES[1], one._runs[0].event.extras[0])
    behind = sequence_hashes(TOKENS[4:8], 2, seed)

    one.served(CacheHit([*HASHES[:2], *behind], 2, 0.1), 1.1)
    one.settle(9.0)

    assert visible(one) == 4


@pytest.mark.parametrize("gone", [11, 12, 13])
def test_a_run_that_is_not_whole_any_more_is_not_placed(lost: Regaining, gone: int) -> None:
    lost.take(batch(store(2, parent=11)), 1.0)
    lost.take(batch(remove(gone)), 1.0)
    lost.served(hit(), 1.1)

    assert lost.settle(9.0) == []


def test_what_two_runs_stand_on_is_believed_until_both_their_parents_are_gone(
    lost: Regaining,
) -> None:
    lost.take(batch(store(2, parent=11), store(1, parent=70, blocks=1, block_hashes=[81])), 1.0)
    lost.served(hit(), 1.1)
    lost.served(hit(1), 1.1)
    lost.settle(9.0)
    assert visible(lost) == 4

    lost.take(batch(remove(12, 13, 11)), 9.0)
    assert visible(lost) == 2
    lost.take(batch(remove(81, 70)), 9.0)
    assert visible(lost) == 0


def test_a_placed_block_that_is_stored_again_is_gone_when_it_was_removed_as_often(
    lost: Regaining,
) -> None:
    lost.take(batch(store(2, parent=11)), 1.0)
    lost.served(hit(), 1.1)
    lost.settle(9.0)

    lost.take(batch(store(0, parent=None)), 9.0)
    lost.take(batch(remove(11)), 9.0)
    assert visible(lost) == 4
    lost.take(batch(remove(11)), 9.0)
    assert visible(lost) == 1


def test_the_oldest_runs_are_let_go_and_those_that_change_nothing_prove_nothing(
    lost: Regaining,
) -> None:
    for _ in range(regaining.MOST_RUNS + 1):
        lost.take(batch(store(0, parent=None)), 1.0)

    assert lost.wants_answers


def test_answers_that_tell_nothing_are_not_kept(lost: Regaining) -> None:
    for cached in (0, len(HASHES)):
        lost.served(hit(cached), 1.0)
    assert lost.settle(9.0) == []

    lost.restart()
    lost.served(hit(), 1.0)
    assert not lost.wants_answers


def test_more_runs_than_are_remembered_since_a_prompt_was_sent_place_nothing(
    lost: Regaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regaining, "MOST_RUNS", 1024)
    lost.take(batch(store(2, parent=11)), 1.0)
    for number in range(1024):
        lost.take(batch(store(2, parent=500, block_hashes=[2 * number + 900, 1])), 1.0)
    lost.served(hit(), 1.1)

    assert lost.settle(9.0) == []


def test_runs_behind_known_blocks_prove_that_what_is_used_is_known(lost: Regaining) -> None:
    wanted: list[bool] = []
    for number in range(PROOF_RUNS):
        wanted.append(lost.wants_answers)
        tokens = [number + 100] * 2
        run = store(0, parent=None, blocks=1, block_hashes=[number + 100], token_ids=tokens)
        lost.take(batch(run), 1.0)
    assert wanted == [True] * PROOF_RUNS

    for event, wants in (
        (store(0, parent=None, blocks=1, block_hashes=[99]), False),
        (store(2, parent=11), True),
        ({"type": "AllBlocksCleared"}, False),
    ):
        lost.take(batch(event), 1.0)
        assert lost.wants_answers is wants


def test_what_is_replayed_proves_nothing(lost: Regaining) -> None:
    for number in range(2 * PROOF_RUNS):
        run = store(0, parent=None, blocks=1, block_hashes=[number + 100])
        lost.take(batch(run), 1.0, replayed=True)

    assert lost.wants_answers


def test_an_engine_of_several_groups_is_not_regained(lost: Regaining) -> None:
    lost.take(batch(store(0, parent=None), store(0, parent=None, group_idx=1)), 1.0)
    assert not lost.wants_answers

    lost.lose()
    assert not lost.wants_answers


def test_placeholders_and_other_tiers_change_nothing_of_it(lost: Regaining) -> None:
    lost.take(batch(store(0, parent=None), store(0, parent=None, token_ids=[], medium="CPU")), 1.0)

    assert visible(lost) == 2
