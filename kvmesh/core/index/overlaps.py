"""How much of a prompt each worker holds: events where they are trusted, decisions beside."""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Final

import msgspec

from kvmesh._native import Approx
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.graded import graded_count
from kvmesh.core.blocks.hashing import ALL_BLOCKS, Hashes, pack_hashes
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


_NO_CHAINS: Final[Mapping[WorkerId, int]] = {}


class OverlapView:
    """The union of the event-fed `index`, the `routed` that own decisions feed and the `hints` that
    other replicas' decisions do (see `listen`); each may be None.

    What events remove from a worker is believed of it no longer, whatever was sent there before.
    """

    def __init__(
        self,
        index: KvIndex | None,
        routed: Approx | None,
        distrusted: Collection[WorkerId],
        *,
        predict_ttl_s: float,
        approx_ttl_s: float,
    ) -> None:
        self._predict_ttl_s = predict_ttl_s
        self._approx_ttl_s = approx_ttl_s
        self.index = index
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
        routed: Groups = []
        for believed in (self.routed, self.hints):
            # Nothing is believed of which no end is near: a replica alone hears nothing.
            if believed is not None and believed.next_end != inf:
                if believed.next_end <= now:
                    believed.expire(now, _EXPIRED_AT_ONCE)
                routed = routed + believed.find_groups(hashes)
        groups = reported
        if chains and routed:
            routed = self._untold(routed, chains)
        if routed:
            groups = sorted(reported + routed, key=_DEPTH, reverse=True)
        overlaps = self._trusted(reported, routed) if self._distrusted else by_worker(groups)
        if device_only or index is None or len(index.tiers) == 1:
            return Found(overlaps, groups, reported, routed=routed)
        slower = self._add_slower(index, hashes, overlaps)
        return Found(overlaps, groups, reported, slower, routed)

    def has_lookahead(self) -> bool:
        """Return whether a search asks for a prompt's token ids, not for its hashes alone."""
        return self.index is not None and self.index.ends.has_lookahead

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
        self, index: KvIndex, hashes: Hashes, overlaps: dict[WorkerId, int]
    ) -> dict[WorkerId, Parts]:
        """Lengthen `overlaps` by what is held in slower memory than the device's.

        Return how many of these blocks are in each tier, per worker with any. What was routed to a
        worker lately is taken to be on the device.
        """
        slower: dict[WorkerId, Parts] = {}
        for worker, (held, parts) in slower_parts(
            index.find_tier_matches(hashes), overlaps
        ).items():
            if worker not in self._distrusted:
                overlaps[worker], slower[worker] = held, parts
        return slower

    def record(self, worker: WorkerId, hashes: Hashes, now: float) -> None:
        """Count a routed prompt as cached."""
        ttl_s = self.ttl_s(worker)
        if self.routed is not None and ttl_s > 0.0 and (blocks := hashes.upto(ALL_BLOCKS)):
            self.routed.record(worker, blocks, now, ttl_s)

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
            return index.sizes(workers)
        routed = [0] * len(workers) if self.routed is None else self.routed.sizes(workers)
        if index is None:
            return routed
        sizes = zip(workers, index.sizes(workers), routed, strict=True)
        return [guess if worker in distrusted else reported for worker, reported, guess in sizes]

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
