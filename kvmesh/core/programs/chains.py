"""Agents that nobody names: a prompt that goes on from another one's blocks is its next turn."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import xxhash

from kvmesh.core.blocks.hashing import Hashes, as_key


class ChainOptions(msgspec.Struct, frozen=True):
    """Prompts of fewer than `least_tokens` are not looked at: such contexts are not worth keeping,
    but for those of `slot_tokens` where an engine keeps few contexts, whatever their length.

    At most `max_chains` are known, of one tenant at most `max_per_tenant`: a newcomer takes the
    place of the one longest unused, of its own tenant where that has too many. One unused for
    `ttl_s` is forgotten.
    """

    least_tokens: int = 4096
    slot_tokens: int = 256
    max_chains: int = 1 << 13
    max_per_tenant: int = 1 << 12
    ttl_s: float = 7200.0


class _Mark(msgspec.Struct, eq=False):
    """A prefix on the way to tips of `users` chains. `tip`: the chain that ends here; `below`: the
    one that ended nearest before, when this was marked.
    """

    below: str
    users: int = 0
    tip: str = ""


class _Chain(msgspec.Struct, eq=False):
    """`marks` are the sequence hashes at the depths of `_depths(depth)`, as keys, the last one its
    tip.
    """

    tenant: str
    depth: int = 0
    marks: tuple[bytes, ...] = ()
    turns: int = 0
    used_s: float = 0.0


class _Tenant(msgspec.Struct, eq=False):
    keys: OrderedDict[str, None] = msgspec.field(default_factory=OrderedDict)
    marks: dict[bytes, _Mark] = {}


class Chains:
    """The last prompt of each chain, found by binary search over depths: O(log blocks) a prompt.

    On the way to a tip of depth n the prefixes are marked whose depths are n without its lowest
    bits. A search goes down by powers of two and follows marks; where other chains fork off below a
    tip it may follow those past it, and then knows the tip only if it was there before them. What
    is found is exact: its last prompt is a prefix of this one. Source: Waldvogel et al., Scalable
    High Speed IP Routing Lookups (1997).
    """

    def __init__(self, options: ChainOptions, block_size: int) -> None:
        self.options = options
        self.least_tokens = options.least_tokens
        self.block_size = block_size
        self._chains: OrderedDict[str, _Chain] = OrderedDict()
        self._tenants: dict[str, _Tenant] = {}

    def __len__(self) -> int:
        """Return how many chains are known, those of one prompt included."""
        return len(self._chains)

    def look_at(self, *, slots: bool) -> None:
        """Look at shorter prompts, too, from now on, where some engine keeps but a few."""
        options = self.options
        self.least_tokens = options.slot_tokens if slots else options.least_tokens

    def find(self, hashes: Hashes, tenant: str, now: float) -> str | None:
        """Return the key of the agent whose next turn, or last prompt again, this is."""
        known = self._tenants.get(tenant)
        if known is None or not self._is_long(hashes):
            return None
        key = self._search(known, hashes.upto(hashes.blocks), hashes.blocks, now)
        chain = self._chains.get(key)
        again = chain is not None and chain.depth == hashes.blocks and chain.turns < _TWICE
        return None if chain is None or again else key

    def learn(self, hashes: Hashes, tenant: str, now: float) -> str | None:
        """Note a prompt; return what `find` would have: None for one that is nobody's next turn."""
        if not self._is_long(hashes):
            return None
        count = hashes.blocks
        values = hashes.upto(count)
        known = self._tenants.get(tenant)
        key = "" if known is None else self._search(known, values, count, now)
        chain = self._chains.get(key)
        if known is None or chain is None:
            self._begin(values, count, tenant, now)
            return None
        chain.used_s = now
        known.keys.move_to_end(key)
        self._chains.move_to_end(key)
        if chain.depth == count:
            return key if chain.turns >= _TWICE else None
        self._unmark(known, key, chain)
        self._mark(known, key, chain, values, count)
        chain.turns += 1
        return key

    def _is_long(self, hashes: Hashes) -> bool:
        return hashes.blocks * self.block_size >= max(1, self.least_tokens)

    def _search(self, known: _Tenant, values: Sequence[int], count: int, now: float) -> str:
        """Return the key of the chain whose tip is deepest among the prompt's prefixes, or ""."""
        depth, best, deepest, marks = 0, "", 0, known.marks
        for power in reversed(range(count.bit_length())):
            step = depth + (1 << power)
            mark = marks.get(as_key(values[step - 1])) if step <= count else None
            if mark is None:
                continue
            depth = step
            for key in (mark.tip, mark.below):
                chain = self._chains.get(key)
                if chain is not None and deepest < chain.depth <= step:
                    there = as_key(values[chain.depth - 1]) == chain.marks[-1]
                    if there and now - chain.used_s <= self.options.ttl_s:
                        best, deepest = key, chain.depth
        return best

    def _begin(self, values: Sequence[int], count: int, tenant: str, now: float) -> None:
        known = self._tenants.setdefault(tenant, _Tenant())
        keys = (_key(tenant, values[count - 1], again) for again in range(_SAME))
        key = next((one for one in keys if one not in self._chains), "")
        if not key:
            return
        if len(known.keys) >= self.options.max_per_tenant:
            self._forget(next(iter(known.keys)))
        elif len(self._chains) >= self.options.max_chains:
            self._forget(next(iter(self._chains)))
        known = self._tenants.setdefault(tenant, known)
        chain = self._chains[key] = _Chain(tenant)
        known.keys[key] = None
        chain.used_s = now
        chain.turns = 1
        self._mark(known, key, chain, values, count)

    def _mark(
        self, known: _Tenant, key: str, chain: _Chain, values: Sequence[int], count: int
    ) -> None:
        """Mark the way to a new tip."""
        below = ""
        found: list[bytes] = []
        for depth in _depths(count):
            key_here = as_key(values[depth - 1])
            mark = known.marks.get(key_here)
            if mark is None:
                mark = known.marks[key_here] = _Mark(below)
            mark.users += 1
            below = mark.tip or mark.below or below
            found.append(key_here)
        known.marks[found[-1]].tip = key
        chain.depth, chain.marks = count, tuple(found)

    def _unmark(self, known: _Tenant, key: str, chain: _Chain) -> None:
        for value in chain.marks:
            mark = known.marks[value]
            mark.users -= 1
            if mark.tip == key:
                mark.tip = ""
            if not mark.users:
                del known.marks[value]

    def _forget(self, key: str) -> None:
        chain = self._chains.pop(key)
        known = self._tenants[chain.tenant]
        self._unmark(known, key, chain)
        del known.keys[key]
        if not known.keys:
            del self._tenants[chain.tenant]


_SAME: Final = 64
"""Chains that may have begun with one and the same prompt; others are not followed."""

_TWICE: Final = 2
"""Turns from which on a chain is an agent."""


def _depths(count: int) -> Iterator[int]:
    """Yield `count` without more and more of its lowest bits, the smallest first."""
    depth = 0
    for power in reversed(range(count.bit_length())):
        if count >> power & 1:
            depth += 1 << power
            yield depth


def _key(tenant: str, tip: int, again: int) -> str:
    """Return 32 hex digits that no session's name has: names have no control characters."""
    name = f"{tenant}\0chain\0{tip:016x}\0{again}"
    return xxhash.xxh3_128_hexdigest(name.encode("utf-8", "replace"))
