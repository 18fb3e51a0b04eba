"""What was met of a newer version, in words that name both."""

from collections.abc import Iterable

import msgspec

from kvmesh.formats import Formats, Kind


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
