"""The compiled engine cache given what it does not expect, without memory, and called by itself."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import EngineCache as NativeCache
from kvmesh.core.blocks.events import Cleared, Removed, Stored
from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
    EngineBatch,
    EngineCleared,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import FARTHEST_TIER, TIERS
from tests.property.support.starving import starved
from tests.reference.engines.cache import NaiveEngineCache

MAKE: Any = NativeCache
TYPES = (Stored, Removed, Cleared)
LIMITS = (100, 4, 1000, 10, 100)


def no_root(lora: str, salt: str) -> int:
    return len(lora) + len(salt)


def names(root_of: Callable[[str, str], object] = no_root) -> tuple[object, ...]:
    return (TIERS, FULL_ATTENTION, root_of, EngineStored, EngineRemoved, EngineCleared)


def store(first: int, blocks: int = 3, **more: object) -> bytes:
    run = list(range(first, first + blocks))
    event = {
        "type": "BlockStored",
        "block_hashes": run,
        "parent_block_hash": None,
        "token_ids": run,
        "block_size": 1,
        **more,
    }
    return msgspec.msgpack.encode([1.5, [event], 0])


def remove(*hashes: int) -> bytes:
    return msgspec.msgpack.encode([1.5, [["BlockRemoved", list(hashes)]], 0])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (1, False, FARTHEST_TIER, names(), TYPES),
        (-1, False, FARTHEST_TIER, names(), TYPES, LIMITS),
        ("x", False, FARTHEST_TIER, names(), TYPES, LIMITS),
        (2**70, False, FARTHEST_TIER, names(), TYPES, LIMITS),
        (1, False, FARTHEST_TIER, names()[:3], TYPES, LIMITS),
        (1, False, FARTHEST_TIER, names(), TYPES[:1], LIMITS),
        (1, False, FARTHEST_TIER, names(), TYPES, LIMITS[:2]),
        (1, False, FARTHEST_TIER, names(), TYPES, (1, 1, 1, -1, 1)),
        (1, False, FARTHEST_TIER, names(), TYPES, (1, 1, 1, 1, 0)),
        (1, False, FARTHEST_TIER, ([], *names()[1:]), TYPES, LIMITS),
        (1, False, FARTHEST_TIER, (TIERS, [], *names()[2:]), TYPES, LIMITS),
    ],
)
def test_what_it_cannot_be_made_of_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError)):
        MAKE(*arguments)


ODD = st.none() | st.integers() | st.text(max_size=2) | st.binary(max_size=2)
NUMBERS = ODD | st.lists(ODD, max_size=2).map(tuple)


@given(
    st.builds(EngineBatch, st.just(0.0), st.none(), NUMBERS, ODD, ODD)
    | ODD
    | st.builds(
        lambda *fields: EngineBatch(0.0, 0, (EngineStored(*fields),)),
        *(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    )
    | st.builds(
        lambda *fields: EngineBatch(0.0, 0, (EngineRemoved(*fields),)), NUMBERS, NUMBERS, NUMBERS
    )
)
def test_a_batch_of_anything_is_folded_or_refused(batch: object) -> None:
    cache = MAKE(1, False, FARTHEST_TIER, names(), TYPES, LIMITS)

    try:
        cache.fold(batch)
    except (AttributeError, OverflowError, TypeError, ValueError):
        cache.lose()
    assert cache.take(store(1, 2)) is not None


def test_bytes_are_needed_to_take() -> None:
    cache = MAKE(1, False, FARTHEST_TIER, names(), TYPES, LIMITS)

    with pytest.raises(TypeError):
        cache.take("text")


def test_more_tiers_than_there_are_break_it_off_until_it_is_told() -> None:
    cache = MAKE(1, False, FARTHEST_TIER, names(), TYPES, LIMITS)
    stores = [EngineStored((1,), None, b"\1\0\0\0", 1, tier) for tier in range(9)]

    with pytest.raises(ValueError, match="at most 8 tiers"):
        cache.fold(EngineBatch(0.0, 0, tuple(stores)))

    with pytest.raises(MemoryError, match="unknown"):
        cache.take(store(1))
    assert cache.lose() == [Cleared()]
    assert len(cache.take(store(1))) == 1


@pytest.mark.parametrize("call", ["take", "lose", "restart", "dump"])
def test_it_is_not_called_while_it_works(call: str) -> None:
    arguments = (store(7),) if call == "take" else ()

    def call_again(*_names: str) -> int:
        getattr(cache, call)(*arguments)
        return 1

    cache = MAKE(1, True, FARTHEST_TIER, names(call_again), TYPES, LIMITS)

    with pytest.raises(RuntimeError, match="while it changes"):
        cache.take(store(1))
    assert cache.lose() == [Cleared()]


def test_what_a_root_raises_is_raised_and_changes_nothing() -> None:
    cache = MAKE(1, True, FARTHEST_TIER, names(lambda _lora, _salt: 1 // 0), TYPES, LIMITS)

    with pytest.raises(ZeroDivisionError):
        cache.take(store(1))
    assert cache.dump() == []


def test_without_memory_it_says_so_and_can_be_used_once_it_is_told() -> None:
    plan = [store(10, 5), store(10, 2, medium="CPU"), store(15, parent_block_hash=11), remove(11)]
    failed = 0
    for number in range(120):
        naive, cache = NaiveEngineCache(1), EngineCache(1)
        for payload in (store(1), *plan, store(11, 3, parent_block_hash=10), remove(1, 2, 3)):
            events = starved(number, cache._native.take, payload)
            if events is None:
                failed += 1
                assert cache.lose() == naive.lose()
                events = cache.take(payload)
            assert events == naive.take(payload)
        assert cache.dump() == naive.dump()
    assert failed > 20
