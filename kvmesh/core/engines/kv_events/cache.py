"""One engine's batches in, prefix-closed events out: what it holds, in content hashes."""

from collections.abc import Callable, Sequence

import msgspec

from kvmesh.core.blocks.events import Cleared, Event
from kvmesh.core.engines.engine_events import EngineBatch, EngineCleared
from kvmesh.core.engines.kv_events.closure import MAX_HIDDEN, Closure, ClosureStatistics
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.kv_events.residency import Residency, ResidencyStatistics
from kvmesh.core.engines.kv_events.tier_table import Change, Dropped, Opened, TierStored
from kvmesh.errors import CodecError


class EngineCacheStatistics(msgspec.Struct, frozen=True):
    """Counters since the start.

    `lost` counts how often the engine's state became unknown, `undecodable` how often because of
    bytes that are no engine batch; `closures` has one entry a tier.
    """

    lost: int
    undecodable: int
    unknown_fields: int
    unknown_tags: int
    visible_blocks: int
    complete: bool
    residency: ResidencyStatistics
    closures: tuple[ClosureStatistics, ...]


class EngineCache:
    """Follows one engine's cache through its batches, restarts and losses.

    Engine events become changes of content (`Residency`), made prefix-closed (`Closure`, one a
    tier). An engine whose history is lost counts as holding nothing until it starts over:
    `complete` is False until then. `decode` reads its dialect, see `decoder_of`.
    """

    def __init__(
        self,
        block_size: int | None = None,
        *,
        secret: bytes = b"",
        decode: Callable[[bytes], EngineBatch] = decode_engine_batch,
        max_hidden: int = MAX_HIDDEN,
    ) -> None:
        self.complete = True
        self._decode = decode
        self._residency = Residency(block_size, secret=secret)
        self._closures: dict[int, Closure] = {}
        self._max_hidden = max_hidden
        self._lost = self._undecodable = 0
        self._unknown_fields = self._unknown_tags = 0

    @property
    def block_size(self) -> int:
        """Return the engine's block size in tokens; 0 while it is unknown."""
        return self._residency.block_size or 0

    def take(self, payload: bytes) -> list[Event]:
        """Fold one batch as the engine published it. O(blocks that changed).

        Raises `CodecError` for bytes that are none: the engine's state is then unknown, which
        `lose` must be told.
        """
        try:
            batch = self._decode(payload)
        except CodecError:
            self._undecodable += 1
            raise
        self._unknown_fields += batch.unknown_fields
        self._unknown_tags += batch.unknown_tags
        events: list[Event] = []
        for event in batch.events:
            if isinstance(event, EngineCleared):
                self.complete = True
            events += self._close(self._residency.apply(event))
        return events

    def restart(self) -> list[Event]:
        """Take the news that the engine began anew."""
        self.complete = True
        return self._close(self._residency.restart())

    def lose(self) -> list[Event]:
        """Take the news that batches are gone: hold nothing rather than something wrong."""
        self._lost += 1
        self.complete = False
        return self._close(self._residency.clear())

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return [run for _, closure in sorted(self._closures.items()) for run in closure.dump()]

    def statistics(self) -> EngineCacheStatistics:
        """Return the present counts."""
        return EngineCacheStatistics(
            lost=self._lost,
            undecodable=self._undecodable,
            unknown_fields=self._unknown_fields,
            unknown_tags=self._unknown_tags,
            visible_blocks=max(map(len, self._closures.values()), default=0),
            complete=self.complete,
            residency=self._residency.statistics(),
            closures=tuple(one.statistics() for _, one in sorted(self._closures.items())),
        )

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
