"""Where a hit may end, by all groups together, in one tier or nearer."""

from collections.abc import Iterable, Iterator, Sequence

from kvmesh.core.blocks.events import ENDS, ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.closure import MAX_RUN, Closure, ClosureStatistics, Runs
from kvmesh.core.engines.kv_events.group_boundaries import Boundaries, Boundary, upto
from kvmesh.core.engines.kv_events.group_kinds import Group, Groups, Role


class TierHits:
    """The visible blocks of one tier, and those of them that a hit may end behind: its ends.

    A block is in the chain when every full-attention group holds it, or, where there is no such
    group, when the engine holds anything at it or behind it. A hit of L blocks also needs of each
    window group the last blocks before L, all of them where there are fewer, and of each group of
    states the one at L. `add` and `remove` tell what a group holds now and what not; `settle` ends
    an event, `take_ends` a batch.
    """

    def __init__(self, tier: int, tree: Boundaries, groups: Groups, *, max_hidden: int) -> None:
        self.tier = tier
        self._mask = upto(tier)
        self._tree = tree
        self._groups = groups
        self._closure = Closure(tier, max_hidden=max_hidden)
        self._runs: list[dict[int, int]] = [{} for _ in range(len(groups))]
        self._shown: dict[int, int] = {}
        self._contents: dict[int, int] = {}
        self._ends: set[int] = set()
        self._suspect: set[int] = set()
        self._gained: list[Boundary] = []
        self._lost: list[int] = []
        for boundary in sorted(tree, key=lambda one: (one.depth, one.key)):
            self._enter(boundary)

    def copy(self, tier: int) -> "TierHits":
        """Return those of a tier that holds the same so far, all of it still to be told."""
        made = TierHits(tier, Boundaries(), self._groups, max_hidden=0)
        made._tree = self._tree
        made._closure = self._closure.copy(tier)
        made._runs = [runs.copy() for runs in self._runs]
        made._shown, made._contents = self._shown.copy(), self._contents.copy()
        made._suspect = self._ends | self._suspect
        return made

    def __len__(self) -> int:
        """Return how many blocks are visible."""
        return len(self._shown) if self._groups.lookahead else len(self._closure)

    def made(self, boundary: Boundary) -> None:
        """Take a new boundary."""
        if not self._groups.full:
            self._gained.append(boundary)

    def gone(self, boundary: Boundary) -> None:
        """Take that a boundary is dropped: nothing ends there, or behind it."""
        if not self._groups.full:
            self._lost.append(boundary.key)

    def add(self, group: Group, boundary: Boundary) -> None:
        """Take that a group holds a boundary's block, which it did not."""
        if group.role != Role.FULL:
            self._on_other(group, boundary)
        elif self._is_complete(boundary):
            self._gained.append(boundary)

    def remove(self, group: Group, boundary: Boundary) -> None:
        """Take that a group holds a boundary's block no more."""
        if group.role != Role.FULL:
            self._on_other(group, boundary)
            return
        for other in self._groups.full:
            if other is not group and not boundary.held[other.slot] & self._mask:
                return
        self._lost.append(boundary.key)

    def settle(self) -> list[Stored | Removed]:
        """Return what became visible since the last call, or no longer is."""
        events: list[Stored] = []
        gained, self._gained = self._gained, []
        start = 0
        for at in range(1, len(gained) + 1):
            if at == len(gained) or gained[at].parent != gained[at - 1].key:
                run = gained[start:at]
                events += self._closure.hold(run[0].parent, [one.key for one in run])
                start = at
        lost, self._lost = self._lost, []
        dropped = self._closure.drop(lost)
        events_behind: list[Stored | Removed] = [*events, *dropped]
        for event in events_behind:
            self._suspect.update(unpack_hashes(event.hashes))
        if not self._groups.lookahead:
            return events_behind
        return [*self._show(events), *self._hide(dropped)]

    def take_ends(self) -> tuple[list[Removed], list[Stored]]:
        """Return the ends that are none any more, and the new ones, since the last call."""
        suspect, self._suspect = self._suspect, set()
        now = {key for key in suspect if self._is_end(key)}
        new, gone = sorted(now - self._ends), sorted((suspect - now) & self._ends)
        self._ends.difference_update(gone)
        self._ends.update(new)
        number = ENDS + self.tier
        removed = [Removed(pack_hashes(run), number) for run in _runs_of(gone)]
        return removed, _ends(new, self.tier)

    def dump(self) -> list[Stored]:
        """Return events that store every visible block, parents first, then every end."""
        return [*self.chain(), *_ends(sorted(self._ends), self.tier)]

    def chain(self) -> list[Stored]:
        """Return events that store every visible block, parents first."""
        chain = self._closure.dump()
        if self._groups.lookahead:
            shown: set[int] = set()
            runs = Runs(self.tier)
            for parent, _, content in self._steps(chain):
                if content not in shown:
                    shown.add(content)
                    runs.add(parent, content)
            chain = runs.take()
        return chain

    def statistics(self) -> ClosureStatistics:
        """Return the present counts."""
        return self._closure.statistics()

    def _enter(self, boundary: Boundary) -> None:
        """Take a boundary with all that is held of it: of a tier, or a rule, that is new."""
        if self._is_complete(boundary):
            self._gained.append(boundary)
        for group in self._groups.windows:
            self._on_other(group, boundary)
        self._suspect.add(boundary.key)

    def _is_complete(self, boundary: Boundary) -> bool:
        for group in self._groups.full:  # noqa: SIM110 - half the time of all()
            if not boundary.held[group.slot] & self._mask:
                return False
        return True

    def _on_other(self, group: Group, boundary: Boundary) -> None:
        """Follow what a window or state means for the ends at it and behind it."""
        if group.role == Role.STATE:
            self._distrust(boundary, self._groups.drop)
            return
        runs, tree = self._runs[group.slot], self._tree
        behind = max(0, self._groups.drop - group.step)
        changed = [boundary]
        while changed:
            one = changed.pop()
            run = self._run_of(group, one)
            if run == runs.get(one.key, 0):
                continue
            if run:
                runs[one.key] = run
            else:
                del runs[one.key]
            self._distrust(one, behind)
            changed += tree.below(one, group.step)

    def _run_of(self, group: Group, boundary: Boundary) -> int:
        """Return how many blocks in a row end here, as many as are needed at most."""
        if not boundary.held[group.slot] & self._mask:
            return 0
        above = self._tree.above(boundary, group.step)
        if above is None:
            return group.need
        return min(group.need, self._runs[group.slot].get(above.key, 0) + 1)

    def _distrust(self, boundary: Boundary, behind: int) -> None:
        if not behind:
            self._suspect.add(boundary.key)
            return
        self._suspect.update(one.key for one in self._tree.below(boundary, behind))

    def _is_end(self, key: int) -> bool:
        boundary, groups, tree = self._tree.get(key), self._groups, self._tree
        if boundary is None or not self._closure.is_visible(key):
            return False
        length = boundary.depth - groups.drop
        if length <= 0 or length % groups.align:
            return False
        for group in groups.windows:
            behind = max(0, groups.drop - group.step)
            at = tree.above(boundary, behind) if behind else boundary
            if at is None or self._runs[group.slot].get(at.key, 0) < group.need:
                return False
        if not groups.states:
            return True
        at = tree.above(boundary, groups.drop)
        return all(at is not None and at.held[one.slot] & self._mask for one in groups.states)

    def _show(self, events: Sequence[Stored]) -> list[Stored]:
        """Return in content hashes what became visible in keys: several may have one content."""
        runs, shown = Runs(self.tier), self._shown
        for parent, key, content in self._steps(events):
            self._contents[key] = content
            count = shown.get(content, 0)
            shown[content] = count + 1
            if not count:
                runs.add(parent, content)
        return runs.take()

    def _hide(self, events: Sequence[Removed]) -> list[Removed]:
        """Return in content hashes what is no longer visible under any key."""
        gone: list[int] = []
        for event in events:
            for key in unpack_hashes(event.hashes):
                content = self._contents.pop(key)
                self._shown[content] -= 1
                if not self._shown[content]:
                    del self._shown[content]
                    gone.append(content)
        return [Removed(pack_hashes(run), self.tier) for run in _runs_of(gone)]

    def _steps(self, events: Iterable[Stored]) -> Iterator[tuple[int, int, int]]:
        """Return the content before, the key and the content of every block that is visible."""
        for event in events:
            before = self._tree.get(event.parent)
            parent = ROOT if before is None else before.content
            for key in unpack_hashes(event.hashes):
                one = self._tree.get(key)
                assert one is not None
                yield parent, key, one.content
                parent = one.content


def _ends(keys: Sequence[int], tier: int) -> list[Stored]:
    return [Stored(ROOT, pack_hashes(run), ENDS + tier) for run in _runs_of(keys)]


def _runs_of(hashes: Sequence[int]) -> Iterator[Sequence[int]]:
    return (hashes[start : start + MAX_RUN] for start in range(0, len(hashes), MAX_RUN))
