"""Records of a format that this build does not read, and what must not be made of the index."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.formats import Formats, Kind

KEEP_S: Final = 3600.0
"""A worker that does not come back within an hour takes what could not be read with it."""


class UnreadRecords:
    """Which workers wrote what could not be read, until they have sent their whole state anew.

    An index without them is no successor of a snapshot that has them. `count` is since the start.
    At most `most` workers are kept in mind: names come from subjects.
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self._most = most
        self._met: dict[WorkerId, tuple[int, float]] = {}

    def meet(self, worker: WorkerId, number: int, now: float) -> bool:
        """Note a record of format `number`; False when there is no room for its worker."""
        self.count += 1
        if worker not in self._met and len(self._met) >= self._most:
            return False
        self._met[worker] = (number, now)
        return True

    def supersede(self, worker: WorkerId) -> None:
        """Note that nothing before the latest record of `worker` matters any more."""
        if self._met:
            self._met.pop(worker, None)

    def clear(self) -> None:
        """Note that the index was loaded from a snapshot: what is behind it will be read."""
        self._met.clear()

    def formats(self, now: float) -> Mapping[WorkerId, int]:
        """Return the format last met of each such worker."""
        for worker in [one for one, (_, met_s) in self._met.items() if now >= met_s + KEEP_S]:
            del self._met[worker]
        return {worker: number for worker, (number, _) in self._met.items()}


class Newer(msgspec.Struct, frozen=True):
    """Something of `kind` has a format that is not read. `where` names it, `version` its writer."""

    where: str
    kind: Kind
    number: int
    version: str = ""

    def words(self, own: Formats, version: str) -> str:
        """Return that this process, of `version` and reading `own`, does not read it."""
        theirs = f"kvmesh {self.version}" if self.version else "a newer kvmesh"
        return (
            f"{self.where} has {self.kind} format {self.number}, of {theirs}: this is "
            f"kvmesh {version}, which reads {own.of(self.kind)}; see docs/operate/upgrade.md"
        )

    def is_read_by_any(self, readers: Iterable[Formats]) -> bool:
        """Return whether some of `readers` read it."""
        return any(self.number in one.of(self.kind) for one in readers)
