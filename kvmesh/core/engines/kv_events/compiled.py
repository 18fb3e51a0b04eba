"""`EngineCache` compiled: the same events, counts and errors, in an eighth of the memory."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import msgspec

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.events import Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import namespace_root
from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
    EngineBatch,
    EngineCleared,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import closure, residency
from kvmesh.core.engines.kv_events.cache import (
    EngineCache,
    EngineCacheStatistics,
    OddEvents,
    shows_groups,
)
from kvmesh.core.engines.kv_events.closure import ClosureStatistics
from kvmesh.core.engines.kv_events.dialect import (
    FARTHEST_TIER,
    TIERS,
    decode_engine_batch,
    decoder_of,
)
from kvmesh.core.engines.kv_events.groups.grouped import GroupedCache
from kvmesh.core.engines.kv_events.residency import Handover, HeldBlock, ResidencyStatistics
from kvmesh.core.engines.kv_events.saved_cache import SavedCache, check_saved
from kvmesh.errors import CodecError

_ROOTS: Final = 4096
"""Namespaces whose roots are kept; one costs 2 us to compute."""


class NativeCache(Protocol):
    """What `kvmesh._native.EngineCache` has."""

    complete: bool
    block_size: int
    group: int | None

    def take(self, payload: bytes, /) -> list[Event] | None:
        """Fold one batch; None, and nothing changed, where the pure decoder has to read it."""
        ...

    def fold(self, batch: EngineBatch, /) -> list[Event]:
        """Fold a batch that was read."""
        ...

    def hand_over(self) -> tuple[int, int, list[tuple[Any, ...]], tuple[int, ...]]:
        """Return what `Handover` has, and hold nothing."""
        ...

    def lose(self) -> list[Event]:
        """Hold nothing, since batches are gone."""
        ...

    def restart(self) -> list[Event]:
        """Hold nothing, since the engine began anew."""
        ...

    def dump(self) -> list[Event]:
        """Return events that store everything visible."""
        ...

    def references(self, engine_hash: int, /) -> int | None:
        """Return how often the nearest tier stored a block, None for an unknown one."""
        ...

    def add(self, blocks: bytes, /) -> list[Event] | None:
        """Hold saved blocks, too; None, and nothing is held, for other bytes."""
        ...

    def save(self) -> tuple[int, int, tuple[int, ...], bytes]:
        """Return what `SavedCache` has."""
        ...

    def load(
        self, group: int, block_size: int, tiers: tuple[int, ...], blocks: bytes, /
    ) -> list[Event] | None:
        """Hold what `save` returned, return the events that follow; None for other bytes."""
        ...

    def statistics(self) -> tuple[Any, ...]:
        """Return unknown fields and tags, visible blocks, and the counts of both parts."""
        ...


class CompiledEngineCache:
    """`EngineCache`, the ordinary batches of the common dialect read without an object a block.

    Any other batch, and one of another dialect, is read by `decode`; what follows is the same. An
    engine of several cache groups is followed by `GroupedCache`.
    About 50 B a block. Where memory ends in the middle of a batch it holds nothing, and raises
    `CodecError` until `lose` or `restart`.
    """

    def __init__(
        self,
        block_size: int | None = None,
        *,
        secret: bytes = b"",
        decode: Callable[[bytes], EngineBatch] = decode_engine_batch,
        drops: bool = False,
        max_hidden: int = closure.MAX_HIDDEN,
    ) -> None:
        @lru_cache(maxsize=_ROOTS)
        def root_of(lora: str, salt: str) -> int:
            return namespace_root(lora=lora, cache_salt=salt, secret=secret)

        self._decode = decode
        self._is_common = decode is decode_engine_batch
        self._is_direct = self._is_common and not drops
        self._secret = secret
        self._drops = drops
        self._max_hidden = max_hidden
        self._grouped: GroupedCache | None = None
        self.odd = OddEvents()
        self._lost = self._undecodable = 0
        assert NATIVE is not None
        self._native = cast(
            "NativeCache",
            NATIVE.EngineCache(
                block_size,
                bool(secret),
                FARTHEST_TIER,
                (TIERS, FULL_ATTENTION, root_of, EngineStored, EngineRemoved, EngineCleared),
                (Stored, Removed, Cleared),
                (
                    residency.MOST_BLOCKS,
                    residency.MOST_TWINS,
                    residency.MOST_REFERENCES,
                    max_hidden,
                    closure.MAX_RUN,
                ),
            ),
        )

    @property
    def complete(self) -> bool:
        """Return whether all is known since the engine started or cleared."""
        return self._native.complete

    @complete.setter
    def complete(self, complete: bool) -> None:
        self._native.complete = complete

    @property
    def group(self) -> int | None:
        """Return the only cache group, None while no event told."""
        return self._native.group

    def references(self, engine_hash: int) -> int | None:
        """Return how often the nearest tier stored a block of the engine's only group; None for one
        that is not known.
        """
        return self._native.references(engine_hash)

    def add(self, saved: SavedCache) -> list[Event]:
        """Hold saved blocks of the nearest tier beside what is held. O(blocks).

        Raises `CodecError` for what cannot have been saved; then `lose` must be told.
        """
        events = self._native.add(saved.blocks)
        if events is None:
            raise CodecError(f"saved blocks of {len(saved.blocks)} bytes are none, or too many")
        return events

    @property
    def block_size(self) -> int:
        """Return the engine's block size in tokens; 0 while it is unknown."""
        return (self._grouped or self._native).block_size

    @property
    def is_grouped(self) -> bool:
        """Return whether it tells where hits may end."""
        return self._grouped is not None

    def take(self, payload: bytes) -> list[Event]:
        """Fold one batch as the engine published it. O(blocks that changed).

        Raises `CodecError` for bytes that are none, and where memory ends: the engine's state is
        then unknown, which `lose` must be told.
        """
        try:
            events = self._native.take(payload) if self._is_direct else None
            return self._fold(self.read(payload)) if events is None else events
        except MemoryError as error:
            why = str(error) or "no memory for what it changes"
            raise CodecError(f"engine batch of {len(payload)} bytes: {why}") from error

    def restart(self) -> list[Event]:
        """Take the news that the engine began anew."""
        self._grouped = None
        self._is_direct = self._is_common and not self._drops
        return self._native.restart()

    def lose(self) -> list[Event]:
        """Take the news that batches are gone: hold nothing rather than something wrong."""
        self._lost += 1
        events = self._native.lose()
        return events if self._grouped is None else self._grouped.clear()

    def save(self) -> SavedCache | None:
        """Return what is held, for another process that follows this engine later; None for one of
        several cache groups. O(blocks).
        """
        return None if self._grouped is not None else SavedCache(*self._native.save())

    def load(self, saved: SavedCache) -> list[Event]:
        """Hold what was saved, which is all that the engine held then. O(blocks).

        Raises `CodecError` for what cannot have been saved; then nothing is held, which `lose` must
        be told.
        """
        self._grouped = None
        self._is_direct = self._is_common and not self._drops
        check_saved(saved)
        events = self._native.load(*msgspec.structs.astuple(saved))
        if events is None:
            raise CodecError(f"saved blocks of {len(saved.blocks)} bytes are none, or too many")
        return events

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return (self._grouped or self._native).dump()

    def statistics(self) -> EngineCacheStatistics:
        """Return the present counts."""
        unknown_fields, unknown_tags, visible, counts, closures = self._native.statistics()
        grouped = self._grouped
        told = tuple(ClosureStatistics(*one) for one in closures)
        return EngineCacheStatistics(
            lost=self._lost,
            undecodable=self._undecodable,
            unknown_fields=unknown_fields,
            unknown_tags=unknown_tags,
            visible_blocks=visible if grouped is None else grouped.visible(),
            complete=self._native.complete,
            residency=ResidencyStatistics(*counts) if grouped is None else grouped.statistics(),
            closures=told if grouped is None else grouped.closures(),
            odd=self.odd.statistics(),
            groups=() if grouped is None else grouped.groups(),
        )

    def read(self, payload: bytes) -> EngineBatch:
        """Return the batch in these bytes, to be folded. Raises `CodecError` for bytes that are
        none.
        """
        try:
            batch = self._decode(payload)
        except CodecError:
            self._undecodable += 1
            raise
        if batch.odd:
            self.odd.add(batch.odd)
        if self._grouped is None and (
            self._drops or shows_groups(batch.events, self._native.group)
        ):
            self._turn()
        return batch

    def fold(self, batch: EngineBatch) -> list[Event]:
        """Fold a batch, or part of one, that was read. Raises `CodecError` where memory ends."""
        try:
            return self._fold(batch)
        except MemoryError as error:
            raise CodecError(str(error) or "no memory for what an engine batch changes") from error

    def _fold(self, batch: EngineBatch) -> list[Event]:
        if self._grouped is None:
            return self._native.fold(batch)
        marks = tuple(event for event in batch.events if isinstance(event, EngineCleared))
        self._native.fold(msgspec.structs.replace(batch, events=marks))
        return self._grouped.take(batch.events)

    def _turn(self) -> None:
        """Follow several groups from now on, with what was held before."""
        group, size, blocks, counts = self._native.hand_over()
        self._is_direct = False
        self._grouped = GroupedCache(
            size or None,
            secret=self._secret,
            drops=self._drops,
            max_hidden=self._max_hidden,
        )
        held = tuple(HeldBlock(*one) for one in blocks)
        self._grouped.adopt(Handover(group, size, held, ResidencyStatistics(0, *counts)))


def new_engine_cache(
    block_size: int | None = None, *, secret: bytes = b"", engine: str = "", drops: bool = False
) -> EngineCache | CompiledEngineCache:
    """Return an empty cache for that kind of engine, the compiled one where there is one; `drops`
    says that it computes the last block that it matched again.
    """
    made = EngineCache if NATIVE is None else CompiledEngineCache
    return made(block_size, secret=secret, decode=decoder_of(engine), drops=drops)
