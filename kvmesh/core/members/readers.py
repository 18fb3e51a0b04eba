"""Who reads what this process writes, and the format that all of them read."""

from typing import Final

from kvmesh.formats import FIRST, OWN, Formats, Kind, writable

HEAR_S: Final = 1.2
"""So long after the start every live reader has been heard: heartbeats come once a second."""


class Readers:
    """The formats that each live reader reads, as heartbeats tell.

    Within `hold_s` after the start nobody may have been heard, and who is not heard any more may
    still read: until then the oldest format, or what it reads, is written. So a reader that comes
    and goes does not make the writer change with it.
    """

    def __init__(self, own: Formats = OWN, *, hold_s: float = HEAR_S) -> None:
        self._own = own
        self._hold_s = hold_s
        self._live: dict[str, Formats] = {}
        self._gone: dict[str, tuple[Formats, float]] = {}

    def begin(self, now: float) -> None:
        """Note that hearing begins."""
        self._gone[""] = (FIRST, now + self._hold_s)

    def hear(self, reader: str, formats: Formats) -> None:
        """Take what a live reader says that it reads."""
        self._live[reader] = formats
        self._gone.pop(reader, None)

    def forget(self, reader: str, now: float) -> None:
        """Note that a reader is not heard any more."""
        formats = self._live.pop(reader, None)
        if formats is not None:
            self._gone[reader] = (formats, now + self._hold_s)

    def format_of(self, kind: Kind, now: float, writer: Formats | None = None) -> int:
        """Return the format in which to write `kind`: this process, or `writer`. O(readers)."""
        for reader in [one for one, (_, until_s) in self._gone.items() if now >= until_s]:
            del self._gone[reader]
        gone = (formats for formats, _ in self._gone.values())
        return writable(kind, (*self._live.values(), *gone), writer or self._own)
