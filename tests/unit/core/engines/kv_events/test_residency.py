import struct

import pytest

from kvmesh.core.blocks.events import ROOT, Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import (
    pack_hashes,
    sequence_hashes,
    unpack_hashes,
)
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.residency import ResidencyStatistics

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


def test_an_engine_that_began_anew_may_have_another_block_size() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12))

    assert list(engine.restart()) == [Cleared()]
    reported = engine.apply(stored(21, 22, tokens=[7] * 16, block_size=8))

    assert (engine.block_size, [len(hashes_of(one)) for one in reported]) == (8, [2])


def test_blocks_of_no_size_are_refused() -> None:
    engine = Engine()

    with pytest.raises(ValueError, match="1 blocks of 0 tokens"):
        engine.apply(stored(11, block_size=0))
    assert engine.apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]


def test_only_the_first_group_counts() -> None:
    engine = Engine(4)
    engine.apply(stored(11, 12, group=1))

    assert engine.apply(stored(21, 22, group=2)) == []
    assert engine.apply(EngineRemoved((21,), group=2)) == []
    assert engine.statistics().ignored_groups == 3
