"""Leaving alone what a newer kvmesh wrote, for the actor that would write over it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kvmesh.actors.kernel import Effect, Message, Send
from kvmesh.actors.messages import Reload
from kvmesh.actors.storage import KeyRead, ReadKey
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.index.snapshot_manifest import Manifest, decode_manifest, refuse_newer
from kvmesh.core.journal.unread import Newer
from kvmesh.core.members.readers import Readers
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, Formats, Kind

LOOK_AGAIN_S: Final = 2.0
"""A manifest of a newer version may be taken away, by who goes back to this one."""


class VersionGuard:
    """Reads the manifest once, and while `newer` says that it is another version's each 2 s.

    One that is read again is loaded by the actor `reload_to`: it has what nobody else may know.
    `written` are the formats of the newest snapshot and of the manifest, as last read or written.
    """

    def __init__(
        self, key: str, wishes: PendingEffects, own: Formats = OWN, reload_to: str = ""
    ) -> None:
        self.newer: Newer | None = None
        self.has_checked = False
        self.written = (1, 1)
        self.readers = Readers(own)
        self._key = key
        self._wishes = wishes
        self._own = own
        self._reload_to = reload_to
        self._check_s = 0.0
        self._why = ""
        self._reading: Kind = "manifest"

    def check(self, now: float, then: Callable[[float], Iterable[Effect]]) -> Iterable[Effect]:
        """Go on with `then(now)`, unless the manifest is a newer kvmesh's.

        One that cannot be read, or is garbage, stops nobody: who writes reads it again before.
        """
        if self.has_checked and self.newer is None:
            return then(now)
        if not self.has_checked:
            self.readers.begin(now)
        if now < self._check_s:
            return ()
        self._check_s = now + LOOK_AGAIN_S

        def on_read(answer: Message, answered_s: float) -> Iterable[Effect]:
            self._check_s = 0.0
            if isinstance(answer, KeyRead):
                try:
                    self.read(answer.value)
                except NewerError as error:
                    self.stop(error, answered_s)
                    return ()
                except CodecError:
                    pass  # It will be replaced.
                back = self.newer is not None and self._reload_to
                self.has_checked, self.newer = True, None
                if back:
                    reload = Reload("snapshots are of a format that is read again")
                    return (Send(self._reload_to, reload), *then(answered_s))
            return () if self.newer is not None else then(answered_s)

        return (self._wishes.make(partial(ReadKey, self._key), on_read),)

    def read(self, value: bytes | None) -> Manifest:
        """Return the manifest in `value`.

        Raises `NewerError` where it or the newest snapshot that it names is a newer kvmesh's, for
        `stop`; else `CodecError`.
        """
        self._reading = "manifest"
        manifest = decode_manifest(value, self._own.manifest)
        self._reading = "snapshot"
        refuse_newer(manifest, self._own.snapshot)
        newest = manifest.generations[:1]
        self.written = (newest[0].encoding if newest else 1, manifest.schema)
        return manifest

    def formats(self, now: float) -> tuple[int, int]:
        """Return in which formats to write snapshots and manifests now: all `readers` read them."""
        return self.readers.format_of("snapshot", now), self.readers.format_of("manifest", now)

    def must_rewrite(self, now: float) -> bool:
        """Return whether a reader came that does not read what was written last."""
        return any(one < last for one, last in zip(self.formats(now), self.written, strict=True))

    def warnings(self) -> tuple[str, ...]:
        """Return why nothing is written, in a line, while that is so."""
        return (f"no snapshots are written: {self._why}",) if self.newer is not None else ()

    def stop(self, error: NewerError, now: float) -> None:
        """Take what a reading of the manifest says: it is not this version's to write."""
        self._check_s = now + LOOK_AGAIN_S
        self.has_checked = True
        self._why = str(error)
        self.newer = Newer("the snapshot store", self._reading, error.number, error.version)
