"""Cache groups beside full attention: sliding windows and mamba states, in the same block pool.

A hybrid model's engine keeps the blocks of each group apart, and a prefix is reused only as far as
all groups have what they need behind it: full attention every block, a window the last
ceil((window - 1) / block_size) blocks, mamba the one state at its end. Windows and mamba keep only
what a later request could need: the end of the prompt, and where a prefix shared with others ended.
Source: vLLM `v1/core/kv_cache_coordinator.py`, `single_type_kv_cache_manager.py` (0.32) with
`prefix_cache_retention_interval` 0, its default. What vLLM computes in several steps so as to stop
at a state it keeps, one step does here.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.core.blocks.events import ROOT
from kvmesh_lab.mocker.model.block_pool import BlockPool, Handle
from kvmesh_lab.mocker.model.cache_group import CacheGroup, Tail
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, GroupStored

STATES: Final = 3
"""Mamba blocks of a request at most: the running state, at the prompt's end, at a junction."""


class CacheGroups:
    """The groups of one engine beside full attention, at least one.

    What a request holds of each is a `Tail`, in the groups' order.
    """

    def __init__(self, options: EngineOptions, pool: BlockPool) -> None:
        self.groups = tuple(
            CacheGroup(number, window) for number, window in enumerate(options.groups, start=1)
        )
        self._block_size = options.block_size
        self._step_tokens = options.max_num_batched_tokens
        self._pool = pool

    def capacity(self) -> int:
        """Return how many blocks' worth of tokens a request alone can have."""
        blocks = self._pool.usable_blocks
        windows = sorted(self._most(group) for group in self.groups if group.window)
        blocks -= STATES * (len(self.groups) - len(windows))
        while windows and blocks > (len(windows) + 1) * windows[0]:
            blocks -= windows.pop(0)
        return max(0, blocks // (len(windows) + 1))

    def longest(self, hashes: Sequence[int], depth: int) -> int:
        """Return how many of the first `depth` blocks can be reused; full attention has all."""
        found, last = depth, -1
        while found != last:
            last = found
            for group in self.groups:
                found = self._longest(group, hashes, found)
        return found

    def cut(self, request: EngineRequest, hits: list[Handle], tokens: int) -> int:
        """Leave of `hits`, what full attention has, what all groups have.

        Returns how many free blocks the request then takes of these groups to have `tokens`.
        """
        hashes, depth = request.hashes, len(hits)
        length = self.longest(hashes, depth)
        del hits[length:]
        request.kept = self._kept(request, depth if length < depth else 0)
        needed = 0
        for group in self.groups:
            first = self._first(group, length * self._block_size)
            found = self._found(group, hashes, range(first, length))
            needed += self._pool.count_free(list(found.values()))
            if group.window:
                most = min(self._blocks(tokens), self._most(group))
                needed += max(0, most - max(first, length))
            else:
                needed += STATES
        return needed

    def begin(self, request: EngineRequest, hit: int) -> None:
        """Hold what a request needs that reuses `hit` blocks."""
        request.tails = []
        for group in self.groups:
            first = self._first(group, hit * self._block_size)
            found = self._found(group, request.hashes, range(first, hit))
            self._pool.hold(found.values())
            request.tails.append(Tail(first, hit, found))

    def make_room(self, request: EngineRequest, tokens: int) -> int:
        """Release what lies before the windows; return how many blocks more `tokens` take."""
        self._pass_by(request, request.computed_tokens)
        return sum(
            self._missing(group, tail, request.kept, tokens) for group, tail in self._tails(request)
        )

    def grow(self, request: EngineRequest, tokens: int) -> int:
        """Note that the request has the blocks that were missing; return how many."""
        grown = 0
        for group, tail in self._tails(request):
            count = self._missing(group, tail, request.kept, tokens)
            tail.end += count
            grown += count
        return grown

    def store(self, request: EngineRequest, full: int) -> Iterator[GroupStored]:
        """Keep of the first `full` blocks what later hits need; yield what is told of each group.

        vLLM tells of a group of which it keeps nothing, too.
        """
        hashes = request.hashes
        for group, tail in self._tails(request):
            first, need = tail.seen, self._need(group)
            if not group.window:
                self._leave_states(tail)
            places = [
                place
                for place in range(first, full)
                if any(one - need <= place < one for one in request.kept)
            ]
            kept = [hashes[place] for place in places]
            handles = self._pool.store([group.key(one) for one in kept])
            tail.held |= zip(places, handles, strict=True)
            tail.seen = full
            parent = hashes[first - 1] if first else ROOT
            yield GroupStored(request, group, first, full - first, parent, places, kept)

    def end(self, request: EngineRequest) -> None:
        """Release all that a request holds, first what lies before its windows."""
        if request.generated > 1:
            self._pass_by(request, request.prompt_tokens + request.generated - 2)
        for tail in request.tails:
            handles = [tail.held[place] for place in sorted(tail.held)]
            self._pool.release(handles, tail.end - tail.first - len(handles))
        request.tails = []

    def _pass_by(self, request: EngineRequest, tokens: int) -> None:
        """Release what lies before the windows: first what the step behind the prompt does."""
        for computed in (min(request.prompt_tokens, tokens), tokens):
            for group, tail in self._tails(request):
                first = min(self._first(group, computed), tail.end)
                if group.window and first > tail.first:
                    gone = [tail.held.pop(place) for place in sorted(tail.held) if place < first]
                    self._pool.release(gone, first - tail.first - len(gone))
                    tail.first = first

    def _tails(self, request: EngineRequest) -> Iterator[tuple[CacheGroup, Tail]]:
        return zip(self.groups, request.tails, strict=True)

    def _kept(self, request: EngineRequest, junction: int) -> tuple[int, ...]:
        """Return the lengths in blocks that others may reuse: the prompt again, and `junction`."""
        return tuple(sorted({(request.prompt_tokens - 1) // self._block_size, junction} - {0}))

    def _most(self, group: CacheGroup) -> int:
        """Return how many blocks of a window a request has at most."""
        return self._blocks(group.window - 1 + self._step_tokens) + 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _need(self, group: CacheGroup) -> int:
        return self._blocks(group.window - 1) if group.window else 1

    def _first(self, group: CacheGroup, tokens: int) -> int:
        """Return the first block that is needed, `tokens` being computed."""
        before = tokens - group.window + 1 if group.window else tokens - 1
        return max(0, before) // self._block_size

    def _found(self, group: CacheGroup, hashes: Sequence[int], places: range) -> dict[int, Handle]:
        found = {place: self._pool.find(group.key(hashes[place])) for place in places}
        return {place: handle for place, handle in found.items() if handle is not None}

    def _longest(self, group: CacheGroup, hashes: Sequence[int], most: int) -> int:
        need, run = self._need(group), 0
        for place in reversed(range(most)):
            run = run + 1 if self._pool.find(group.key(hashes[place])) is not None else 0
            if run == need:
                return place + need
        return run

    def _missing(self, group: CacheGroup, tail: Tail, kept: Sequence[int], tokens: int) -> int:
        if group.window:
            return self._blocks(tokens) - tail.end
        full = tokens // self._block_size
        running = tail.end - tail.first - len(tail.held)
        return sum(tail.seen < one <= full for one in kept) + 1 - running

    def _leave_states(self, tail: Tail) -> None:
        """Release the states of earlier steps: they were only read."""
        self._pool.release(list(tail.held.values()), 0)
        tail.first += len(tail.held)
        tail.held = {}
