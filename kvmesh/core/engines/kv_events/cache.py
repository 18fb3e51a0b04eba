"""One engine's batches in, prefix-closed events out: what it holds, in content hashes."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from kvmesh._native import EngineCache as NativeCache
from kvmesh.core.blocks.events import Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import namespace_root
from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import closure, residency
from kvmesh.core.engines.kv_events.closure import ClosureStatistics
from kvmesh.core.engines.kv_events.dialect import (
    FARTHEST_TIER,
    TIERS,
    decode_engine_batch,
    decoder_of,
)
from kvmesh.core.engines.kv_events.group_kinds import GroupStatistics
from kvmesh.core.engines.kv_events.grouped import GroupedCache
from kvmesh.core.engines.kv_events.residency import Handover, HeldBlock, ResidencyStatistics
from kvmesh.core.engines.kv_events.saved_cache import SavedCache, check_saved
from kvmesh.errors import CodecError

_ROOTS: Final = 4096
"""Namespaces whose roots are kept; one costs 2 us to compute."""


class EngineCacheStatistics(msgspec.Struct, frozen=True):
    """Counters since the start.

    `lost` counts how often the engine's state became unknown, `undecodable` how often because of
    bytes that are no engine batch; `closures` has one entry a tier. `odd` counts the events that
    were left out because they cannot be read, by reason. `groups` describes the cache groups of an
    engine that has several, or a rule of reuse of its own; it is empty for any other.
    """

    lost: int
    undecodable: int
    unknown_fields: int
    unknown_tags: int
    visible_blocks: int
    complete: bool
    residency: ResidencyStatistics
    closures: tuple[ClosureStatistics, ...]
    odd: tuple[tuple[str, int], ...] = ()
    groups: tuple[GroupStatistics, ...] = ()


MOST_REASONS: Final = 32
"""Reasons for leaving out events that are told apart; the others count as `other`."""


class OddEvents:
    """Counts events that were left out, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._count = 0
        self._reported = 0

    def add(self, reasons: Iterable[str]) -> None:
        """Count one event for each reason."""
        for reason in reasons:
            is_known = reason in self._counts or len(self._counts) < MOST_REASONS
            self._counts[reason if is_known else "other"] += 1
            self._count += 1

    def is_update(self) -> bool:
        """Return whether there are any, and twice as many as when this said so last."""
        if self._count < max(1, 2 * self._reported):
            return False
        self._reported = self._count
        return True

    def statistics(self) -> tuple[tuple[str, int], ...]:
        """Return (reason, events), the most frequent first."""
        return tuple(sorted(self._counts.items(), key=lambda one: (-one[1], one[0])))


def shows_groups(events: Iterable[EngineEvent], group: int | None) -> bool:
    """Return whether a batch of an engine, so far of the one `group`, tells of more than one, or of
    one by whose blocks alone no hit can be told. O(events).
    """
    for event in events:
        if not isinstance(event, EngineStored):
            continue
        if event.kind not in FULL_ATTENTION or event.lookahead:
            return True
        if event.tokens:
            if group is None:
                group = event.group
            elif event.group != group:
                return True
    return False


class EngineCache:
    """Follows one engine's cache through its batches, restarts and losses.

    Engine events become changes of content, made prefix-closed as `Closure` says, one a tier: in
    one compiled call a batch (kvmesh/native/engines/engine_cache.c), the ordinary batches of the
    common dialect read without an object a block. Any other batch, and one of another dialect, is
    read by `decode`, see `decoder_of`; `odd` counts what was left out. From the first sign of
    several cache groups on, or from the beginning if the engine `drops` the last block that it
    matched (EAGLE, MTP), a `GroupedCache` follows it.

    Stores are counted per (tier, engine hash): engines store a block again whenever a prompt ends
    on its boundary and remove it as often, and a plain set is then wrong for one request in eight.
    A tier's events tell what is held there or nearer. `block_size` None, or one that the events
    contradict before any event agreed with it, is set from the events: they win. Engine blocks of
    several block sizes are split. An engine whose history is lost counts as holding nothing until
    it starts over: `complete` is False until then.

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
        self._native = NativeCache(
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
        groups = tuple(ClosureStatistics(*one) for one in closures)
        return EngineCacheStatistics(
            lost=self._lost,
            undecodable=self._undecodable,
            unknown_fields=unknown_fields,
            unknown_tags=unknown_tags,
            visible_blocks=visible if grouped is None else grouped.visible(),
            complete=self._native.complete,
            residency=ResidencyStatistics(*counts) if grouped is None else grouped.statistics(),
            closures=groups if grouped is None else grouped.closures(),
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
) -> EngineCache:
    """Return an empty cache for that kind of engine; `drops` says that it computes the last block
    that it matched again.
    """
    return EngineCache(block_size, secret=secret, decode=decoder_of(engine), drops=drops)
