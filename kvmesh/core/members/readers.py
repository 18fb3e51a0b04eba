"""Who reads what this process writes, and the format that all of them read."""

from typing import Final

from kvmesh.formats import FIRST, OWN, Formats, Kind, writable

HEAR_S: Final = 1.2
"""So long after the start every live reader has been heard: heartbeats come once a second."""

TOLD_S: Final = 30.0
"""What a reader told a writer counts for so long: one that is gone tells nothing else."""

MOST_TELLERS: Final = 1024
"""Readers whose word is kept: the latest."""


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
        """Note that heartbeats count from now on."""
        self._gone[""] = (FIRST, now + self._hold_s)

    def receive(self, reader: str, formats: Formats, now: float) -> bool:
        """Take what a live reader says that it reads; return whether that is news. O(1).

        What it said before counts for `hold_s` more: who says now this and now that does not make
        the writer change each time.
        """
        before = self._live.get(reader)
        if before == formats:
            return False
        self._live[reader] = formats
        if before is None:
            self._gone.pop(reader, None)
        else:
            self._gone[reader] = (before, now + self._hold_s)
        return True

    def forget(self, reader: str, now: float) -> None:
        """Remove a reader whose heartbeats stopped."""
        formats = self._live.pop(reader, None)
        if formats is not None:
            self._gone[reader] = (formats, now + self._hold_s)

    def format_of(self, kind: Kind, now: float, writer: Formats | None = None) -> int:
        """Return the format in which to write `kind`: this process, or `writer`. O(readers)."""
        self._expire(now)
        gone = (formats for formats, _ in self._gone.values())
        return writable(kind, (*self._live.values(), *gone), writer or self._own)

    def oldest(self, kind: Kind, now: float) -> str:
        """Return the reader that keeps `kind` from being written in this process's newest format,
        the first of several; "" if none does. O(readers).
        """
        self._expire(now)
        newest = self._own.of(kind).newest
        members = [
            *self._live.items(),
            *((one, formats) for one, (formats, _) in self._gone.items()),
        ]
        older = [(formats.of(kind).newest, reader) for reader, formats in members]
        least, reader = min(older, default=(newest, ""))
        return reader if least < newest else ""

    def _expire(self, now: float) -> None:
        for reader in [one for one, (_, until_s) in self._gone.items() if now >= until_s]:
            del self._gone[reader]


class RequestedFormats:
    """The lowest that a replica told lately counts: two that hear different readers cannot make a
    worker change its format with each command.
    """

    def __init__(self, oldest: int, newest: int) -> None:
        self._oldest = oldest
        self._newest = newest
        self._reported: dict[str, tuple[int, float]] = {}

    def take(self, router: str, number: int, now: float) -> int:
        """Take the command of `router` to write format `number`; return what to write now."""
        self._reported.pop(router, None)
        late = [
            one for one, (_, reported_s) in self._reported.items() if now >= reported_s + TOLD_S
        ]
        if not late and len(self._reported) >= MOST_TELLERS:
            late = [next(iter(self._reported))]
        for one in late:
            del self._reported[one]
        self._reported[router] = (number, now)
        lowest = min(reported for reported, _ in self._reported.values())
        return min(max(lowest, self._oldest), self._newest)
