"""What changed in one tier of an engine's cache, in content hashes."""

from collections.abc import Sequence

import msgspec

from kvmesh.core.blocks.events import ROOT


class TierStored(msgspec.Struct, frozen=True):
    """A run of content hashes is now held in `tier` or nearer; `parent` precedes the first."""

    parent: int
    hashes: tuple[int, ...]
    tier: int = 0


class Dropped(msgspec.Struct, frozen=True):
    """Content hashes no longer held in `tier` or nearer."""

    hashes: tuple[int, ...]
    tier: int = 0


class TierTable:
    """How many engine blocks of one tier or nearer stand for each content hash.

    `add` and `remove` gather changes, `take` hands them out; between two `take`s only one of the
    two may be called.
    """

    def __init__(self, tier: int) -> None:
        self.tier = tier
        self._present: dict[int, int] = {}
        self._runs: list[tuple[int, list[int]]] = []

    def add(self, parent: int, contents: Sequence[int]) -> None:
        """Count one more engine block standing for `contents`, a run after `parent`."""
        present, runs = self._present, self._runs
        for content in contents:
            if content in present:
                present[content] += 1
            else:
                present[content] = 1
                if runs and (run := runs[-1][1])[-1] == parent:
                    run.append(content)
                else:
                    runs.append((parent, [content]))
            parent = content

    def remove(self, contents: Sequence[int]) -> None:
        """Count one engine block less for `contents`."""
        for content in reversed(contents):
            count = self._present[content] - 1
            if count:
                self._present[content] = count
            else:
                del self._present[content]
                if not self._runs:
                    self._runs.append((ROOT, []))
                self._runs[0][1].append(content)

    def take(self, *, held: bool) -> list[TierStored] | list[Dropped]:
        """Return the first holds (`held`) or the last drops since the last call."""
        runs, self._runs = self._runs, []
        if held:
            return [TierStored(parent, tuple(run), self.tier) for parent, run in runs]
        return [Dropped(tuple(run), self.tier) for _, run in runs]
