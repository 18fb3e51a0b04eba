"""The naive model of kvmesh/native/engines/residents.c: an engine's opaque hashes as content
hashes.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import extend_hash, namespace_root, sequence_hashes
from kvmesh.core.engines.engine_events import EngineEvent, EngineRemoved, EngineStored
from kvmesh.core.engines.kv_events import residency as bounds
from kvmesh.core.engines.kv_events.residency import Handover, HeldBlock, ResidencyStatistics
from kvmesh.core.engines.kv_events.saved_cache import (
    SavedBlock,
    SavedCache,
    check_saved,
    pack_block,
)
from kvmesh.errors import CodecError
from kvmesh_lab.simulator.fleet.tier_table import Dropped, TierStored, TierTable

_BITS: Final = 24
_TOKEN_BYTES: Final = 4
_HEAD: Final = struct.Struct("<QQQHB")


class Opened(msgspec.Struct, frozen=True):
    """`tier` is used from now on: all that `nearer`, the next tier before it, holds is its, too."""

    tier: int
    nearer: int


class Emptied(msgspec.Struct, frozen=True):
    """Nothing is held any more, in any tier."""


Change = TierStored | Dropped | Opened | Emptied


class _Block(msgspec.Struct, gc=False):
    """One engine block: the content it stands for, and how often each tier stored it.

    `references` packs the tiers' counts into one number, 24 bits each: a list would cost 90 B. The
    collector passes over blocks, which cannot be in a cycle: 160,000 of them cost it 0.8 us a block
    stored, and turns of 46 ms.
    """

    parent: int
    contents: tuple[int, ...]
    root: int
    references: int = 0

    def counts(self, tiers: Sequence[int]) -> tuple[int, ...]:
        """Return how often each of `tiers` stored it."""
        return tuple(self.references >> tier * _BITS & bounds.MOST_REFERENCES for tier in tiers)


class Residency:
    """Folds engine events into changes of content, one engine and data-parallel rank each.

    Stores are counted per (tier, engine hash): vLLM stores a block again whenever a prompt ends on
    its boundary and removes it as often, and a plain set is then wrong for one request in eight.
    Of several cache groups the first is followed; an engine whose blocks are of more (a hybrid
    model) is `GroupedCache`'s. A tier's changes tell what is held there or nearer.

    `block_size` None, or one that the events contradict before any event agreed with it, is set
    from the events: they win. Engine blocks of several block sizes are split.
    """

    def __init__(self, block_size: int | None = None, *, secret: bytes = b"") -> None:
        self.block_size = block_size
        self._secret = secret
        self._size_confirmed = False
        self.group: int | None = None
        self._blocks: dict[int, _Block] = {}
        self._twins: dict[int, list[_Block]] = {}
        self._tables = [TierTable(0)]
        self._counts: dict[str, int] = {}

    def apply(self, event: EngineEvent) -> Sequence[Change]:
        """Return how `event` changes what is held; nothing for what cannot be followed."""
        if isinstance(event, EngineStored):
            return self._store(event)
        if isinstance(event, EngineRemoved):
            return self._remove(event)
        return self.clear()

    def clear(self) -> Sequence[Change]:
        """Forget every block, e.g. because the engine's history was lost."""
        self._blocks.clear()
        self._twins.clear()
        self._tables = [TierTable(0)]
        return (Emptied(),)

    def restart(self) -> Sequence[Change]:
        """Forget every block of an engine that began anew: its blocks may have another size now."""
        self._size_confirmed = False
        return self.clear()

    def hand_over(self) -> Handover:
        """Return what is held, and hold nothing. Of several contents of one hash the first goes."""
        blocks = tuple(
            HeldBlock(engine_hash, one.parent, one.contents, one.root, one.references)
            for engine_hash, one in self._blocks.items()
        )
        handover = Handover(self.group or 0, self.block_size or 0, blocks, self.statistics())
        self._counts.clear()
        self.restart()
        return handover

    def save(self) -> SavedCache:
        """Return what is held, for another process. O(blocks)."""
        tiers = tuple(table.tier for table in self._tables)
        packed = [
            pack_block(
                SavedBlock(engine_hash, one.parent, one.root, one.contents, one.counts(tiers))
            )
            for engine_hash, first in self._blocks.items()
            for one in (first, *self._twins.get(engine_hash, ()))
        ]
        group = -1 if self.group is None else self.group
        return SavedCache(group, self.block_size or 0, tiers, b"".join(packed))

    def load(self, saved: SavedCache) -> Sequence[Change]:
        """Hold what was saved in place of what is held; return how that changes it. O(blocks).

        Raises `CodecError` for what cannot have been saved; then nothing is held.
        """
        check_saved(saved)
        changes = [*self.restart()]
        for tier in saved.tiers:
            changes += self._open_tier(tier)
        try:
            for block in unpack_blocks(saved):
                self._load(block, saved.tiers)
        except CodecError:
            self.restart()
            raise
        self.group = None if saved.group < 0 else saved.group
        self.block_size = saved.block_size or self.block_size
        self._size_confirmed = saved.block_size > 0
        return [*changes, *self._take(held=True)]

    def _load(self, block: SavedBlock, tiers: Sequence[int]) -> None:
        engine_hash, contents = block.engine_hash, block.contents
        if max(block.counts) > bounds.MOST_REFERENCES:
            raise CodecError(f"saved block {engine_hash:016x} is stored {max(block.counts)} times")
        references = sum(n << tier * _BITS for tier, n in zip(tiers, block.counts, strict=True))
        held = _Block(block.parent, contents, block.root, references)
        if engine_hash in self._blocks:
            twins = self._twins.setdefault(engine_hash, [])
            if len(twins) >= bounds.MOST_TWINS:
                raise CodecError(
                    f"saved block {engine_hash:016x} has over {bounds.MOST_TWINS} contents"
                )
            twins.append(held)
        elif len(self._blocks) >= bounds.MOST_BLOCKS:
            raise CodecError(f"saved cache has over {bounds.MOST_BLOCKS} blocks")
        else:
            self._blocks[engine_hash] = held
        for table in self._tables:
            if references & _upto(table.tier):
                table.add(block.parent, contents)

    def statistics(self) -> ResidencyStatistics:
        """Return the present counts."""
        return ResidencyStatistics(blocks=len(self._blocks), **self._counts)

    def _store(self, event: EngineStored) -> Sequence[Change]:
        if self.group is None:
            self.group = event.group
        if event.group != self.group:
            self._count("ignored_groups", len(event.hashes))
            return ()
        changes = self._open_tier(event.tier)
        if not event.tokens:
            self._hold_again(event)
        else:
            size = self._size(event)
            if not size or event.block_size % size:
                self._count("partial_blocks", len(event.hashes))
                return changes
            self._hold_anew(event, size)
        return [*changes, *self._take(held=True)]

    def _hold_again(self, event: EngineStored) -> None:
        """Take an offload notice without tokens: its hashes must be known from another tier."""
        for engine_hash in event.hashes:
            block = self._blocks.get(engine_hash)
            if block is None:
                self._count("placeholders", 1)
            else:
                self._refer(block, event.tier)

    def _hold_anew(self, event: EngineStored, size: int) -> None:
        root = namespace_root(
            lora=event.lora or "", cache_salt=event.salt or "", secret=self._secret
        )
        parent = ROOT
        if event.parent is not None:
            before = self._find(event.parent, root)
            if before is None:
                self._count("orphans", len(event.hashes))
                return
            parent, root = before.contents[-1], before.root
        contents = self._contents(event, size, parent, root)
        step = event.block_size // size
        blocks, tier = self._blocks, event.tier
        tables = [table for table in self._tables if table.tier >= tier]
        one = 1 << tier * _BITS
        for index, engine_hash in enumerate(event.hashes):
            part = tuple(contents[index * step : (index + 1) * step])
            if engine_hash in blocks:
                self._refer(self._block(engine_hash, parent, part, root), tier)
            elif len(blocks) >= bounds.MOST_BLOCKS:
                self._count("crowded", len(event.hashes) - index)
                return
            else:
                blocks[engine_hash] = _Block(parent, part, root, one)
                for table in tables:
                    table.add(parent, part)
            parent = part[-1]

    def _contents(self, event: EngineStored, size: int, parent: int, root: int) -> list[int]:
        """Return the content hashes of all blocks; opaque extras are folded in where they stand."""
        if not event.extras:
            return sequence_hashes(event.tokens, size, root, parent if parent != ROOT else None)
        contents: list[int] = []
        width = event.block_size * _TOKEN_BYTES
        seed = parent if parent != ROOT else root
        for index, extra in enumerate(event.extras):
            if extra:
                seed = extend_hash(seed, extra)
            chunk = event.tokens[index * width : (index + 1) * width]
            contents += sequence_hashes(chunk, size, seed)
            seed = contents[-1]
        return contents

    def _block(self, engine_hash: int, parent: int, contents: tuple[int, ...], root: int) -> _Block:
        """Return the block of that content, new if need be, of a hash that is known.

        Where hashes do not cover the cache salt, one hash may stand for two contents: twins. With
        too many of them it is the first that counts: what follows is then hidden.
        """
        known = self._blocks[engine_hash]
        if known.contents == contents:
            return known
        twins = self._twins.setdefault(engine_hash, [])
        for twin in twins:
            if twin.contents == contents:
                return twin
        if len(twins) >= bounds.MOST_TWINS:
            self._count("crowded", 1)
            return known
        block = _Block(parent, contents, root)
        twins.append(block)
        return block

    def _find(self, engine_hash: int, root: int) -> _Block | None:
        """Return the block with that hash, of several the one in the same namespace."""
        known = self._blocks.get(engine_hash)
        for twin in self._twins.get(engine_hash, ()):
            if twin.root == root:
                return twin
        return known

    def _remove(self, event: EngineRemoved) -> Sequence[Change]:
        if event.group != self.group:
            self._count("ignored_groups", len(event.hashes))
            return ()
        blocks, tier = self._blocks, event.tier
        tables = [table for table in self._tables if table.tier >= tier]
        one = 1 << tier * _BITS
        for engine_hash in event.hashes:
            block = blocks.get(engine_hash)
            if block is None or not block.references >> tier * _BITS & bounds.MOST_REFERENCES:
                self._count("unknown_removals", 1)
            elif block.references != one:
                self._release(block, tier)
            else:
                for table in tables:
                    table.remove(block.contents)
                self._retire(engine_hash)
        return self._take(held=False)

    def _retire(self, engine_hash: int) -> None:
        """Forget a block; the oldest twin, if any, takes its place."""
        del self._blocks[engine_hash]
        twins = self._twins.get(engine_hash)
        if twins is not None:
            self._blocks[engine_hash] = twins.pop(0)
            if not twins:
                del self._twins[engine_hash]

    def _refer(self, block: _Block, tier: int) -> None:
        one = 1 << tier * _BITS
        if block.references >> tier * _BITS & bounds.MOST_REFERENCES == bounds.MOST_REFERENCES:
            return
        block.references += one
        for table in self._tables:
            if table.tier >= tier and block.references & _upto(table.tier) == one:
                table.add(block.parent, block.contents)

    def _release(self, block: _Block, tier: int) -> None:
        block.references -= 1 << tier * _BITS
        for table in self._tables:
            if table.tier >= tier and not block.references & _upto(table.tier):
                table.remove(block.contents)

    def _open_tier(self, tier: int) -> Sequence[Change]:
        """Start a table the first time a tier is used; all nearer blocks belong to it."""
        if any(table.tier == tier for table in self._tables):
            return ()
        nearer = max((one for one in self._tables if one.tier < tier), key=lambda one: one.tier)
        table = _copy(nearer, tier)
        self._tables = sorted([*self._tables, table], key=lambda one: one.tier)
        return (Opened(tier, nearer.tier),)

    def _size(self, event: EngineStored) -> int:
        """Return the block size to split by; 0 while it is unknown."""
        # A partial block never comes in a run, and offloaded ones may be several in one: only a run
        # on the device tells the engine's true block size.
        sure = len(event.hashes) > 1 and event.tier == 0
        if event.block_size == self.block_size:
            self._size_confirmed = True
        elif not self._size_confirmed and (self.block_size is None or sure):
            if self.block_size is not None:
                self._count("mismatched_blocks", len(event.hashes))
            self.block_size = event.block_size
            self._size_confirmed = sure
        return self.block_size or 0

    def _take(self, *, held: bool) -> list[Change]:
        return [change for table in self._tables for change in table.take(held=held)]

    def _count(self, name: str, blocks: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + blocks


def _upto(tier: int) -> int:
    """Return the bits of the counts of `tier` and nearer ones."""
    return (1 << (tier + 1) * _BITS) - 1


def _copy(table: TierTable, tier: int) -> TierTable:
    """Return the table of a tier that holds the same so far."""
    made = TierTable(tier)
    made._present = table._present.copy()
    return made


def unpack_blocks(saved: SavedCache) -> Iterator[SavedBlock]:
    """Yield the blocks. Raises `CodecError` where the bytes are none. O(blocks)."""
    data, tiers, at = saved.blocks, len(saved.tiers), 0
    try:
        while at < len(data):
            engine_hash, parent, root, numbers, stored = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            rest = struct.Struct(f"<{numbers}Q{stored.bit_count()}I")
            read = rest.unpack_from(data, at)
            at += rest.size
            said = iter(read[numbers:])
            counts = tuple(next(said) if stored >> tier & 1 else 0 for tier in range(tiers))
            if not numbers or not stored or stored >> tiers or 0 in read[numbers:]:
                raise CodecError(f"saved block {engine_hash:016x} before byte {at} is none")
            yield SavedBlock(engine_hash, parent, root, read[:numbers], counts)
    except struct.error as error:
        raise CodecError(f"saved blocks of {len(data)} bytes: {error}") from error
