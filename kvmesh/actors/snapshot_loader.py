"""Loading the index: newest good snapshot, else an older one, else the journal from its start."""

import hashlib
from collections.abc import Generator, Iterable
from functools import partial
from typing import Final

import msgspec

from kvmesh.actors.kernel import Effect, Fields, Log, Message, Wake
from kvmesh.actors.messages import Reload, Started, Tick
from kvmesh.actors.storage import Failed, FetchObject, KeyRead, ObjectFetched, OpenTail, ReadKey
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.index.snapshot_manifest import (
    Manifest,
    SnapshotGeneration,
    decode_manifest,
    refuse_newer,
)
from kvmesh.core.index.snapshot_reading import Snapshot, decode_in_slices
from kvmesh.core.journal.ordering import Cursor
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.journal.unread import Newer
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, Formats, Kind

RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
"""Between two attempts to read a manifest that the store does not give."""

OLDER_S: Final = 3.0
"""So long an older snapshot is waited for where the newest is a newer version's: who wrote it hears
within a second what this process reads, and then stores one for it.
"""

LOOK_S: Final = 0.25
"""Between two looks for it."""


class LoaderStatistics(msgspec.Struct, frozen=True):
    """Counters since the start: snapshots loaded, and those (or manifests) found bad."""

    loading: bool
    loaded: int
    rejected: int


class SnapshotLoader:
    """Brings `replica` to a snapshot at the start and on `Reload`, then has the tail opened.

    Decoding runs one slice a turn, so that requests are served meanwhile by the index as it was.
    What has a format that is not among `formats` is left as it is; `newer` says so.
    """

    def __init__(
        self,
        replica: IndexReplica,
        manifest_key: str,
        *,
        formats: Formats = OWN,
        name: str = "loader",
    ) -> None:
        self.name = name
        self.loading = False
        self.newer: Newer | None = None
        self._formats = formats
        self._replica = replica
        self._manifest_key = manifest_key
        self._wishes = PendingEffects()
        self._slices: Generator[Iterable[Effect]] | None = None
        self._at_least = 0
        self._until_s: float | None = None
        self._pause_s = RETRY_MIN_S
        self._error = ""
        self._loaded = self._rejected = 0

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` and `storage` for what each means."""
        match message:
            case Tick("manifest"):
                return (self._read_manifest(),)
            case Tick():
                return self._go_on()
            case Started():
                return self._load("start")
            case Reload(reason, at_least):
                return () if self.loading else self._load(reason, at_least)
            case _:
                return self._wishes.answer(message, now)

    def statistics(self) -> LoaderStatistics:
        """Return the present counts."""
        return LoaderStatistics(self.loading, self._loaded, self._rejected)

    def _load(self, reason: str, at_least: int = 0) -> Iterable[Effect]:
        self.loading = True
        self.newer, self._until_s = None, None
        self._at_least = at_least
        return (Log("info", "loading the index", {"reason": reason}), self._read_manifest())

    def _read_manifest(self) -> Effect:
        return self._wishes.make(partial(ReadKey, self._manifest_key), self._on_read)

    def _on_read(self, answer: Message, now: float) -> Iterable[Effect]:
        if not isinstance(answer, KeyRead):
            return self._ask_again(_reason(answer))
        self._pause_s, self._error = RETRY_MIN_S, ""
        manifest: Manifest | None = None
        try:
            manifest = decode_manifest(answer.value, self._formats.manifest)
            refuse_newer(manifest, self._formats.snapshot)
        except NewerError as error:
            if self._waits(now):
                return (Wake(LOOK_S, Tick("manifest")),)
            if manifest is None:
                self._meet("the snapshot manifest", "manifest", error.number, error.version)
                return self._replay(now)
        except CodecError as error:
            self._rejected += 1
            bad = Log("error", "snapshot manifest is bad", {"error": str(error)})
            return (bad, *self._replay(now))
        assert manifest is not None
        created = self._replica.created
        useful = (
            one
            for one in manifest.generations
            if one.created != created or one.sequence >= self._at_least
        )
        return self._try(tuple(useful), now)

    def _waits(self, now: float) -> bool:
        """Return whether to look again for what an older version reads."""
        if self._until_s is None:
            self._until_s = now + OLDER_S
        return now < self._until_s

    def _ask_again(self, error: str) -> Iterable[Effect]:
        """Wait twice as long each time; an error is logged when it is another one."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, RETRY_MAX_S)
        again = Wake(pause_s, Tick("manifest"))
        if error == self._error:
            return (again,)
        self._error = error
        return (Log("warning", "snapshot manifest unreadable", {"error": error}), again)

    def _try(self, generations: tuple[SnapshotGeneration, ...], now: float) -> Iterable[Effect]:
        """Load the first of `generations`; the others are for when it is bad."""
        if not generations:
            return self._replay(now)
        first, others = generations[0], generations[1:]
        if first.encoding > self._formats.snapshot.newest:
            self._meet(f"snapshot {first.name}", "snapshot", first.encoding, first.version)
            return self._try(others, now)

        def on_fetched(answer: Message, now: float) -> Iterable[Effect]:
            if not isinstance(answer, ObjectFetched):
                return self._reject(first, others, _reason(answer), now)
            if hashlib.sha256(answer.data).hexdigest() != first.sha256:
                return self._reject(first, others, "sha256 differs from the manifest's", now)
            self._slices = self._decode(answer.data, first, others, now)
            fields: Fields = {"object": first.name, "bytes": len(answer.data)}
            return (Log("info", "snapshot fetched", fields), Wake(0.0, Tick("slice")))

        return (self._wishes.make(partial(FetchObject, first.name), on_fetched),)

    def _meet(self, where: str, kind: Kind, number: int, version: str) -> None:
        """Count what a newer version wrote; the first is shown."""
        self._rejected += 1
        self.newer = self.newer or Newer(where, kind, number, version)

    def _reject(
        self,
        bad: SnapshotGeneration,
        others: tuple[SnapshotGeneration, ...],
        reason: str,
        now: float,
    ) -> Iterable[Effect]:
        self._rejected += 1
        fields: Fields = {"object": bad.name, "error": reason, "older_ones": len(others)}
        return (Log("error", "snapshot is bad", fields), *self._try(others, now))

    def _go_on(self) -> Iterable[Effect]:
        """Run one slice of the decoding."""
        if self._slices is None:
            return ()
        effects = next(self._slices, None)
        if effects is None:
            self._slices = None
            return ()
        return (*effects, Wake(0.0, Tick("slice")))

    def _decode(
        self,
        data: bytes,
        generation: SnapshotGeneration,
        others: tuple[SnapshotGeneration, ...],
        now: float,
    ) -> Generator[Iterable[Effect]]:
        try:
            for snapshot in decode_in_slices(data, reads=self._formats.snapshot):
                yield () if snapshot is None else self._take(snapshot, generation, now)
        except NewerError as error:
            self._meet(f"snapshot {generation.name}", "snapshot", error.number, "")
            yield self._try(others, now)
        except CodecError as error:
            yield self._reject(generation, others, str(error), now)

    def _take(
        self, snapshot: Snapshot, generation: SnapshotGeneration, now: float
    ) -> Iterable[Effect]:
        """Put the snapshot in place of the index and read on behind it."""
        position = snapshot.position
        cursors = {one.worker: Cursor(one.epoch, one.next_seq, one.gap) for one in snapshot.records}
        self._replica.index.load(snapshot.image, snapshot.truncated)
        self._replica.restore(position.sequence, position.created, cursors, now)
        self.loading = False
        self._loaded += 1
        fields: Fields = {
            "object": generation.name,
            "sequence": position.sequence,
            "workers": len(cursors),
            "blocks": generation.blocks,
        }
        tail = OpenTail(position.sequence, position.created)
        return (Log("info", "snapshot loaded", fields), tail)

    def _replay(self, now: float) -> Iterable[Effect]:
        """Read the journal from its start: there is no usable snapshot."""
        self.loading = False
        replica = self._replica
        if replica.applied_sequence:
            replica.distrust_all(now)
            return (Log("warning", "no usable snapshot, asking the workers", {}),)
        return (Log("info", "no snapshot, reading the whole journal", {}), OpenTail(0, ""))


def _reason(answer: Message) -> str:
    return answer.reason if isinstance(answer, Failed) else type(answer).__name__
