"""Sees to it that a bucket's workers write what its replicas read, and names what is not read."""

from collections.abc import Callable, Iterable
from typing import Final

from kvmesh.actors.kernel import Effect, Fields, Log, Publish
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WriteFormat
from kvmesh.actors.wire import Subjects, encode
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.unread import Newer, UnreadRecords
from kvmesh.core.members.readers import HEAR_S, Readers
from kvmesh.formats import Formats

REPEAT_S: Final = 1.0
"""So long a worker may take to do what it was told."""

Met = Callable[[], Newer | None]
"""Returns what of a newer format another part of the process met, while that is so."""


class FormatKeeper:
    """Tells each worker the highest journal format that it writes and all live replicas read.

    A worker is told only while its heartbeats say that it writes another one: where all processes
    are of one version nothing is sent. `sources` are asked for what else is newer than `own`.
    """

    def __init__(
        self, router: str, subjects: Subjects, unread: UnreadRecords, own: Formats, version: str
    ) -> None:
        self.sources: list[Met] = []
        self._router = router
        self._subjects = subjects
        self._unread = unread
        self._own = own
        self._version = version
        self._readers = Readers(own)
        self._readers.receive(router, own, 0.0)
        self._reported: dict[WorkerId, float] = {}
        self._writing: dict[WorkerId, int] = {}
        self._versions: dict[WorkerId, str] = {}
        self._received_s = 0.0
        self._logged = False

    def begin(self, now: float) -> None:
        """Note the start: heartbeats of replicas count from now on."""
        self._readers.begin(now)
        self._received_s = now + HEAR_S

    def receive_worker(self, beat: WorkerHeartbeat, now: float) -> Iterable[Effect]:
        """Tell a worker which format to write, if it writes another one. O(replicas)."""
        writes, number = beat.formats.journal, beat.journal_format
        self._note(beat)
        if writes.oldest == writes.newest or not beat.events:
            return ()
        wanted = self._readers.format_of("journal", now, beat.formats)
        if wanted == number:
            self._reported.pop(beat.worker, None)
            return ()
        if now < self._reported.get(beat.worker, -REPEAT_S) + REPEAT_S:
            return ()
        self._reported[beat.worker] = now
        command = WriteFormat(beat.worker, wanted, self._router)
        return (Publish(self._subjects.control(beat.worker), encode(command)),)

    def receive_router(self, beat: RouterHeartbeat, now: float) -> None:
        """Take what another replica reads."""
        self._readers.receive(beat.router, beat.formats, now)

    def forget_worker(self, worker: WorkerId) -> None:
        """Drop a worker that is gone."""
        self._reported.pop(worker, None)
        self._writing.pop(worker, None)
        self._versions.pop(worker, None)

    def forget_router(self, router: str, now: float) -> None:
        """Drop a replica that is gone."""
        self._readers.forget(router, now)

    def met(self, now: float) -> list[Newer]:
        """Return what is of a newer format than is read: of workers one by one, and stored."""
        formats = self._writing | dict(self._unread.formats(now))
        found = (source() for source in self.sources)
        stored = [one for one in found if one is not None]
        return stored + [
            Newer(f"worker {worker}", "journal", number, self._versions.get(worker, ""))
            for worker, number in sorted(formats.items())
        ]

    def why_not(self, now: float, ready: Iterable[Formats]) -> str:
        """Return why requests should go to others: one of the `ready` replicas reads what this one
        does not, or none was heard yet. Where none does, this one serves as well as it can.
        """
        met = self.met(now)
        readers = list(ready) if met else []
        for newer in met:
            if now < self._received_s or newer.is_read_by_any(readers):
                return newer.words(self._own, self._version)
        return ""

    def warnings(self, now: float) -> tuple[str, ...]:
        """Return the first that is newer, and how many more there are, in a line."""
        met = self.met(now)
        return (self._line(met),) if met else ()

    def check(self, now: float) -> Iterable[Effect]:
        """Return a line when the first of a newer format is met, and one when none is left."""
        met = self.met(now)
        if bool(met) == self._logged or now < self._received_s:
            return ()
        self._logged = bool(met)
        if not met:
            return (Log("info", "all formats are read again", {"version": self._version}),)
        first = met[0]
        fields: Fields = {
            "where": first.where,
            "kind": first.kind,
            "format": first.number,
            "written_by": first.version,
            "read_by": self._version,
            "reads": str(self._own.of(first.kind)),
            "more": len(met) - 1,
            "remedy": "see docs/operate/upgrade.md",
        }
        return (Log("error", "newer format met", fields),)

    def _line(self, met: list[Newer]) -> str:
        more = f" ({len(met) - 1} more)" if len(met) > 1 else ""
        return met[0].words(self._own, self._version) + more

    def _note(self, beat: WorkerHeartbeat) -> None:
        """Note the version of a worker that has another, and the format of one that is not read."""
        worker = beat.worker
        if beat.version != self._version:
            self._versions[worker] = beat.version
        elif self._versions:
            self._versions.pop(worker, None)
        if beat.events and beat.journal_format not in self._own.journal:
            self._writing[worker] = beat.journal_format
        elif self._writing:
            self._writing.pop(worker, None)
