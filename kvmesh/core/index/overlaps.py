"""How much of a prompt each worker holds: events where they are trusted, decisions beside."""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Final

import msgspec

from kvmesh._native import Approx
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.graded import graded_count
from kvmesh.core.blocks.hashing import ALL_BLOCKS, BlockHashes, Hashes, pack_hashes
from kvmesh.core.index.block_table import Groups
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.tier_credit import Parts, slower_parts

_EXPIRED_AT_ONCE: Final = 4096
_DEPTH: Final = itemgetter(0)


class Found(msgspec.Struct, frozen=True, gc=False):
    """What is cached of a prompt, in blocks.

    `overlaps` is the longest cached prefix per worker, `groups` the same by depth, deepest first,
    where a worker may appear again with less; `reported` what events alone tell, by depth.
    `slower`: how many of a worker's overlap lie in slower memory, by tier. `routed`: the part of
    `groups` that decisions tell, in no order.
    """

    overlaps: dict[WorkerId, int]
    groups: Groups
    reported: Groups
    slower: Mapping[WorkerId, Parts] = {}
    routed: Groups = []


_Others = tuple[BlockHashes, ...]

_NO_CHAINS: Final[Mapping[WorkerId, int]] = {}


class OverlapView:
    """The union of the event-fed `index`, the `routed` that own decisions feed and the `hints` that
    other replicas' decisions do (see `listen`); each may be None.

    Depths are in blocks of `block_size` tokens. `sizes` are those of further blocks that events
    tell of: prompts are looked for by each of them. `own_tokens`: what a block has of the workers
    whose blocks are of another size.
    What events remove from a worker is believed of it no longer, whatever was sent there before.
    """

    def __init__(
        self,
        index: KvIndex | None,
        routed: Approx | None,
        distrusted: Collection[WorkerId],
        *,
        block_size: int,
        predict_ttl_s: float,
        approx_ttl_s: float,
    ) -> None:
        self.block_size = block_size
        self._predict_ttl_s = predict_ttl_s
        self._approx_ttl_s = approx_ttl_s
        self.index = index
        self.sizes: tuple[int, ...] = ()
        self.own_tokens: Mapping[WorkerId, int] = {}
        self.routed = routed
        self.hints: Approx | None = None
        self._distrusted = distrusted
        if index is not None and routed is not None:
            index.watchers.append(routed.revoke)

    def listen(self, hints: Approx) -> None:
        """Keep in `hints`, from now on, what other replicas tell of their decisions."""
        self.hints = hints
        if self.index is not None:
            self.index.watchers.append(hints.revoke)

    def find_groups(self, hashes: Hashes, now: float) -> tuple[dict[WorkerId, int], Groups]:
        """Return the cached prefix in blocks per worker, the longest of all views, and by depth."""
        found = self.find(hashes, now, device_only=True)
        return found.overlaps, found.groups

    def find(self, hashes: Hashes, now: float, *, device_only: bool = False) -> Found:
        """Return what is cached of a prompt, in the longest of all views.

        The event-fed view does not count for `distrusted` workers. Unless `device_only`, overlaps
        are lengthened by what is held in slower memory than the device's.
        """
        index = self.index
        chains: Mapping[WorkerId, int] = _NO_CHAINS
        if index is None:
            reported: Groups = []
        elif index.grouped:
            reported, chains = index.find_hits(hashes)
        else:
            reported = index.find_groups(hashes)
        others = self._by_other_sizes(hashes)
        if others and index is not None:
            reported, chains = self._join(index, others, reported, chains)
        routed, groups = self._believed(hashes, now), reported
        if chains and routed:
            routed = self._untold(routed, chains)
        if routed:
            groups = sorted(reported + routed, key=_DEPTH, reverse=True)
        overlaps = self._trusted(reported, routed) if self._distrusted else by_worker(groups)
        if device_only or index is None or len(index.tiers) == 1:
            return Found(overlaps, groups, reported, routed=routed)
        slower = self._add_slower(index, hashes, others, overlaps)
        return Found(overlaps, groups, reported, slower, routed)

    def has_lookahead(self) -> bool:
        """Return whether a search asks for a prompt's token ids, not for its hashes alone."""
        return self.index is not None and (bool(self.sizes) or self.index.ends.has_lookahead)

    def _believed(self, hashes: Hashes, now: float) -> Groups:
        """Return what decisions tell, of each worker in whole blocks of its own, in no order."""
        routed: Groups = []
        for believed in (self.routed, self.hints):
            # Nothing is believed of which no end is near: a replica alone hears nothing.
            if believed is not None and believed.next_end != inf:
                if believed.next_end <= now:
                    believed.expire(now, _EXPIRED_AT_ONCE)
                routed = routed + believed.find_groups(hashes)
        if not self.own_tokens:
            return routed
        size, own = self.block_size, self.own_tokens
        cut = [
            ((depth * size - depth * size % own.get(worker, size)) // size, (worker,))
            for depth, workers in routed
            for worker in workers
        ]
        return [one for one in cut if one[0]]

    def _by_other_sizes(self, hashes: Hashes) -> _Others:
        """Return the hashes of the same prompt by blocks of each other size."""
        if not self.sizes or not isinstance(hashes, BlockHashes):
            return ()
        made = (hashes.by(size) for size in self.sizes)
        return tuple(one for one in made if one is not None)

    def _join(
        self, index: KvIndex, others: _Others, reported: Groups, chains: Mapping[WorkerId, int]
    ) -> tuple[Groups, Mapping[WorkerId, int]]:
        """Return `reported` and `chains` with what is told in blocks of other sizes."""
        found, ends = list(reported), dict(chains)
        for hashes in others:
            groups, longer = index.find_hits(hashes)
            found += [(self._of(hashes, depth), who) for depth, who in groups]
            for worker, depth in longer.items():
                ends[worker] = max(self._of(hashes, depth), ends.get(worker, 0))
        return sorted((one for one in found if one[0]), key=_DEPTH, reverse=True), ends

    def _of(self, hashes: BlockHashes, depth: int) -> int:
        """Return what so many blocks of the size of `hashes` are in blocks of our size."""
        return depth * hashes.block_size // self.block_size

    def _untold(self, routed: Groups, chains: Mapping[WorkerId, int]) -> Groups:
        """Return what is believed beyond what events have told of, where a chain of blocks is
        longer than what a request can be continued from: that is known of the rest.
        """
        reported = {worker: end for worker, end in chains.items() if worker not in self._distrusted}
        left = [
            (depth, tuple(worker for worker in workers if depth > reported.get(worker, 0)))
            for depth, workers in routed
        ]
        return [group for group in left if group[1]]

    def _trusted(self, reported: Groups, routed: Groups) -> dict[WorkerId, int]:
        """Return the longest of all views where events do not count for everybody."""
        overlaps = by_worker(reported)
        for worker in self._distrusted:
            overlaps.pop(worker, None)
        for depth, workers in routed:
            for worker in workers:
                overlaps[worker] = max(depth, overlaps.get(worker, 0))
        return overlaps

    def _add_slower(
        self, index: KvIndex, hashes: Hashes, others: _Others, overlaps: dict[WorkerId, int]
    ) -> dict[WorkerId, Parts]:
        """Lengthen `overlaps` by what is held in slower memory than the device's.

        Return how many of these blocks are in each tier, per worker with any. What was routed to a
        worker lately is taken to be on the device.
        """
        slower: dict[WorkerId, Parts] = {}
        tiers = index.find_tier_matches(hashes)
        for other in others:
            for tier, matches in zip(tiers, index.find_tier_matches(other), strict=True):
                for worker, depth in matches.items():
                    tier[worker] = max(self._of(other, depth), tier.get(worker, 0))
        for worker, (held, parts) in slower_parts(tiers, overlaps).items():
            if worker not in self._distrusted:
                overlaps[worker], slower[worker] = held, parts
        return slower

    def record(self, worker: WorkerId, hashes: Hashes, now: float, keep_s: int = 0) -> None:
        """Count a routed prompt as cached, for `keep_s` where that is longer and no events tell."""
        ttl_s = self.ttl_s(worker)
        if self.routed is not None and ttl_s > 0.0 and (blocks := hashes.upto(ALL_BLOCKS)):
            kept_s = 0 if self.confirms(worker) else keep_s
            self.routed.record(worker, blocks, now, ttl_s, kept_s)

    def receive(self, worker: WorkerId, graded: Sequence[int], blocks: int, now: float) -> None:
        """Count a prompt of so many `blocks` as cached that another replica routed: `grade` made
        `graded` of it.
        """
        if self.hints is not None:
            self.hints.record_graded(worker, graded, blocks, now, self.ttl_s(worker))

    def ttl_s(self, worker: WorkerId) -> float:
        """Return how long a routed prompt counts as cached: briefly where events will confirm it,
        else longer.
        """
        return self._predict_ttl_s if self.confirms(worker) else self._approx_ttl_s

    def confirms(self, worker: WorkerId) -> bool:
        """Return whether events say what the worker caches of a prompt once it is computed."""
        return self.index is not None and worker not in self._distrusted

    def bound(self, worker: WorkerId, slots: int, blocks: int) -> None:
        """Take how many prompts an engine keeps by its own word, 0: any number, and how many
        blocks. Where events tell what it keeps that is of no matter.
        """
        if self.routed is not None and not self.confirms(worker):
            self.routed.bound(worker, slots, blocks)

    def kept(self, worker: WorkerId) -> tuple[int, int]:
        """Return how many prompts and blocks an engine without events seems to keep, by its own
        word and by its answers; 0: not known.
        """
        if self.routed is None or self.confirms(worker):
            return 0, 0
        return self.routed.keeps(worker)

    def retract(self, worker: WorkerId, hashes: Hashes | bytes, known_blocks: int) -> None:
        """Believe of a prompt that was not served no more than its first `known_blocks`.

        `hashes` of one that was heard of are its graded ones, packed.
        """
        if isinstance(hashes, bytes):
            if self.hints is not None:
                kept = graded_count(max(0, known_blocks)) * HASH_BYTES
                self.hints.revoke(worker, hashes[kept:])
        elif self.routed is not None:
            expected = hashes.upto(ALL_BLOCKS)[known_blocks:]
            if expected:
                self.routed.revoke(worker, pack_hashes(expected))

    def cached_blocks(self, workers: Sequence[WorkerId]) -> list[int]:
        """Return the size of each worker's cached tree in the view that counts for it.

        That is by events, or by own decisions alone: of what was heard only some blocks are kept.
        """
        index, distrusted = self.index, self._distrusted
        if index is not None and not distrusted:
            return self._index_sizes(index, workers)
        routed = [0] * len(workers) if self.routed is None else self.routed.sizes(workers)
        if index is None:
            return routed
        sizes = zip(workers, self._index_sizes(index, workers), routed, strict=True)
        return [guess if worker in distrusted else reported for worker, reported, guess in sizes]

    def _index_sizes(self, index: KvIndex, workers: Sequence[WorkerId]) -> list[int]:
        sizes = index.sizes(workers)
        if not self.own_tokens:
            return sizes
        own, base = self.own_tokens, self.block_size
        pairs = zip(workers, sizes, strict=True)
        return [blocks * own.get(worker, base) // base for worker, blocks in pairs]

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget what decisions said of a worker that left; events are the index's own affair."""
        for believed in (self.routed, self.hints):
            if believed is not None:
                believed.remove_worker(worker)


def by_worker(groups: Groups) -> dict[WorkerId, int]:
    """Return the depth of the first group, the deepest, that each worker is in; they may overlap
    here.
    """
    matches: dict[WorkerId, int] = {}
    for depth, workers in reversed(groups):
        matches.update(dict.fromkeys(workers, depth))
    return matches
