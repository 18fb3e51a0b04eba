"""The naive model of kvmesh/native/engines/engine_cache.c: one engine's batches, prefix-closed."""

import sys
from collections.abc import Callable, Sequence

from kvmesh.core.blocks.events import Cleared, Event
from kvmesh.core.engines.engine_events import EngineBatch, EngineCleared, EngineEvent
from kvmesh.core.engines.kv_events.cache import EngineCacheStatistics, OddEvents, shows_groups
from kvmesh.core.engines.kv_events.closure import MAX_HIDDEN, Closure
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.kv_events.group_table import GroupTable
from kvmesh.core.engines.kv_events.grouped import GroupedCache
from kvmesh.core.engines.kv_events.saved_cache import SavedCache
from kvmesh.errors import CodecError
from kvmesh_lab.simulator.fleet.tier_table import Dropped, TierStored
from tests.reference.engines.residency import Change, Opened, Residency


class NaiveEngineCache:
    """Follows one engine's cache through its batches, restarts and losses.

    Engine events become changes of content (`Residency`), made prefix-closed (`Closure`, one a
    tier). From the first sign of several cache groups on, or from the beginning if the engine
    `drops` the last block that it matched (EAGLE, MTP), a `GroupedCache` does that. An engine whose
    history is lost counts as holding nothing until it starts over: `complete` is False until then.
    `decode` reads its dialect, see `decoder_of`; `odd` counts what was left out.
    """

    def __init__(
        self,
        block_size: int | None = None,
        *,
        secret: bytes = b"",
        decode: Callable[[bytes], EngineBatch] = decode_engine_batch,
        drops: bool = False,
        max_hidden: int = MAX_HIDDEN,
    ) -> None:
        self.complete = True
        self._decode = decode
        self._secret = secret
        self._drops = drops
        self._grouped: GroupedCache | None = None
        self.odd = OddEvents()
        self._residency = Residency(block_size, secret=secret)
        self._closures: dict[int, Closure] = {}
        self._max_hidden = max_hidden
        self._lost = self._undecodable = 0
        self._unknown_fields = self._unknown_tags = 0

    @property
    def block_size(self) -> int:
        """Return the engine's block size in tokens; 0 while it is unknown."""
        if self._grouped is not None:
            return self._grouped.block_size
        return self._residency.block_size or 0

    @property
    def is_grouped(self) -> bool:
        """Return whether it tells where hits may end."""
        return self._grouped is not None

    def take(self, payload: bytes) -> list[Event]:
        """Fold one batch as the engine published it. O(blocks that changed).

        Raises `CodecError` for bytes that are none: the engine's state is then unknown, which
        `lose` must be told.
        """
        return self.fold(self.read(payload))

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
        if self._grouped is None and self._must_turn(batch.events):
            self._turn()
        return batch

    def fold(self, batch: EngineBatch) -> list[Event]:
        """Fold a batch, or part of one, that was read."""
        self._unknown_fields += batch.unknown_fields
        self._unknown_tags += batch.unknown_tags
        if self._grouped is not None:
            reported = self._grouped.take(batch.events)
            self.complete |= any(isinstance(event, EngineCleared) for event in batch.events)
            return reported
        events: list[Event] = []
        for event in batch.events:
            if isinstance(event, EngineCleared):
                self.complete = True
            events += self._close(self._residency.apply(event))
        return events

    def restart(self) -> list[Event]:
        """Take the news that the engine began anew."""
        self.complete = True
        self._grouped = None
        return self._close(self._residency.restart())

    def lose(self) -> list[Event]:
        """Take the news that batches are gone: hold nothing rather than something wrong."""
        self._lost += 1
        self.complete = False
        if self._grouped is not None:
            return self._grouped.clear()
        return self._close(self._residency.clear())

    def save(self) -> SavedCache | None:
        """Return what is held, for another process that follows this engine later; None for one of
        several cache groups. O(blocks).
        """
        return None if self._grouped is not None else self._residency.save()

    def load(self, saved: SavedCache) -> list[Event]:
        """Hold what was saved, which is all that the engine held then. O(blocks).

        Raises `CodecError` for what cannot have been saved; then nothing is held, which `lose` must
        be told.
        """
        self._grouped = None
        self._closures.clear()
        # Children may come before their parents: nothing is forgotten before all are there.
        bound, self._max_hidden = self._max_hidden, sys.maxsize
        try:
            self._close(self._residency.load(saved))
        finally:
            self._max_hidden = bound
        for closure in self._closures.values():
            closure.max_hidden = bound
        self.complete = True
        return [Cleared(), *self.dump()]

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        if self._grouped is not None:
            return self._grouped.dump()
        return [run for _, closure in sorted(self._closures.items()) for run in closure.dump()]

    def statistics(self) -> EngineCacheStatistics:
        """Return the present counts."""
        grouped = self._grouped
        if grouped is None:
            visible = max(map(len, self._closures.values()), default=0)
            closures = tuple(one.statistics() for _, one in sorted(self._closures.items()))
        else:
            visible, closures = grouped.visible(), grouped.closures()
        return EngineCacheStatistics(
            lost=self._lost,
            undecodable=self._undecodable,
            unknown_fields=self._unknown_fields,
            unknown_tags=self._unknown_tags,
            visible_blocks=visible,
            complete=self.complete,
            residency=(grouped or self._residency).statistics(),
            closures=closures,
            odd=self.odd.statistics(),
            groups=() if grouped is None else grouped.groups(),
        )

    def _must_turn(self, events: Sequence[EngineEvent]) -> bool:
        """Return whether blocks of one group do not tell any more how much can be reused."""
        return self._drops or shows_groups(events, self._residency.group)

    def _turn(self) -> None:
        """Follow several groups from now on, with what was held before."""
        size = self._residency.block_size
        grouped = GroupedCache(
            size,
            secret=self._secret,
            drops=self._drops,
            max_hidden=self._max_hidden,
            new_table=GroupTable,
        )
        grouped.adopt(self._residency.hand_over())
        self._closures.clear()
        self._grouped = grouped

    def _close(self, changes: Sequence[Change]) -> list[Event]:
        """Return the changes made prefix-closed."""
        events: list[Event] = []
        for change in changes:
            if isinstance(change, TierStored):
                events += self._closure(change.tier).hold(change.parent, change.hashes)
            elif isinstance(change, Dropped):
                events += self._closure(change.tier).drop(change.hashes)
            elif isinstance(change, Opened):
                events += self._open(change)
            else:
                self._closures.clear()
                events.append(Cleared())
        return events

    def _open(self, opened: Opened) -> Sequence[Event]:
        """Return what a tier holds at once that is used for the first time."""
        nearer = self._closures.get(opened.nearer)
        if nearer is None:
            return ()
        closure = self._closures[opened.tier] = nearer.copy(opened.tier)
        return closure.dump()

    def _closure(self, tier: int) -> Closure:
        closure = self._closures.get(tier)
        if closure is None:
            closure = self._closures[tier] = Closure(tier, max_hidden=self._max_hidden)
        return closure
