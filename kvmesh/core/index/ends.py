"""Where a hit may end at workers of several cache groups: what a search is cut to.

Such a worker holds full-attention blocks as others do. What a request can be continued from is
decided by all its groups: the worker tells the blocks that a hit may end behind (see `events.ENDS`)
and the rule by which they are read (`events.Reuse`).
"""

from xxhash import xxh3_64_intdigest

from kvmesh._native import Table
from kvmesh.core.blocks.events import Reuse, WorkerId
from kvmesh.core.index.block_table import EndTables, Holding
from kvmesh.core.index.freeze import FrozenEnds, freeze_ends
from kvmesh.core.index.tier import Tier


class Ends:
    """The rules of grouped workers, and for each tier the ends that they told of it.

    A worker has its bit of the index. `grouped` is the mask of those with a rule, `masks` the same
    by rule; `has_lookahead`: searches ask for a prompt's token ids. `tiers` are the index's to
    open.
    """

    def __init__(self) -> None:
        self.tiers: list[Tier] = []
        self.masks: dict[Reuse, int] = {}
        self.grouped = 0
        self.has_lookahead = False
        self._rules: dict[WorkerId, tuple[Reuse, int]] = {}

    def follow(self, worker: WorkerId, bit: int, rule: Reuse) -> None:
        """Read the ends of `worker`, which has that bit, by `rule` from now on. O(1)."""
        self.forget(worker)
        self._rules[worker] = rule, bit
        self.masks[rule] = self.masks.get(rule, 0) | bit
        self.grouped |= bit
        self.has_lookahead = self.has_lookahead or rule.lookahead > 0

    def forget(self, worker: WorkerId) -> None:
        """Take `worker` for one of a single cache group; ends are the caller's affair. O(rules)."""
        known = self._rules.pop(worker, None)
        if known is None:
            return
        rule, bit = known
        self.grouped ^= bit
        self.masks[rule] ^= bit
        if not self.masks[rule]:
            del self.masks[rule]
            self.has_lookahead = any(one.lookahead for one in self.masks)

    def rule(self, worker: WorkerId) -> Reuse | None:
        """Return the rule of `worker`, None for one of a single cache group."""
        known = self._rules.get(worker)
        return None if known is None else known[0]

    def rules(self) -> dict[WorkerId, Reuse]:
        """Return every rule, as a copy."""
        return {worker: rule for worker, (rule, _) in self._rules.items()}

    def freeze(self) -> tuple[FrozenEnds, ...]:
        """Return every rule, and what is held of ends, as they are now. O(grouped workers)."""
        return tuple(
            freeze_ends(one, rule, [tier.holdings(one) for tier in self.tiers])
            for one, (rule, _) in self._rules.items()
        )

    def digest(self, worker: WorkerId) -> int:
        """Return what the rule of `worker` adds to its digest, 0 without one."""
        known = self._rules.get(worker)
        return 0 if known is None else rule_digest(known[0])

    def place(self, worker: WorkerId) -> tuple[Table, Holding] | None:
        """Return where ends of the device of `worker` are kept; None where that is no one place."""
        if worker not in self._rules or not self.tiers or self.tiers[0].old is not None:
            return None
        table = self.tiers[0].young
        holding = table.holdings.get(worker)
        return None if holding is None else (table, holding)

    def tables(self, number: int) -> EndTables | None:
        """Return what a search in tier `number` needs to be cut; None where nobody is grouped."""
        if not self.grouped:
            return None
        tier = self.tiers[number] if number < len(self.tiers) else None
        rules = tuple((rule.lookahead, rule.drop, mask) for rule, mask in self.masks.items())
        return (None, None, rules) if tier is None else (tier.young, tier.old, rules)


def rule_digest(rule: Reuse) -> int:
    """Return a rule's part of a worker's digest: a u64, never 0."""
    return xxh3_64_intdigest(f"reuse:{rule.lookahead}:{rule.drop}".encode()) or 1
