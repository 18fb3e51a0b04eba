import struct

import pytest

from kvmesh.core.blocks.events import ROOT, Event, Stored
from kvmesh.core.blocks.hashing import (
    pack_hashes,
    sequence_hashes,
)
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineEvent,
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


def test_blocks_of_no_size_are_refused() -> None:
    engine = Engine()

    with pytest.raises(ValueError, match="1 blocks of 0 tokens"):
        engine.apply(stored(11, block_size=0))
    assert engine.apply(stored(11, 12)) == [held(ROOT, FIRST, SECOND)]
