"""Leaving alone what a newer kvmesh wrote, for the actor that would write over it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from kvmesh.actors.kernel import Effect, Log, Message
from kvmesh.actors.storage import KeyRead, ReadKey
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.snapshots.manifest import decode_manifest
from kvmesh.errors import CodecError, NewerError

LOOK_AGAIN_S: Final = 60.0
"""A manifest of a newer version may be taken away, by who goes back to this one."""


class VersionGuard:
    """Reads the manifest once, and while `newer` says that it is another version's each minute."""

    def __init__(self, key: str, wishes: PendingEffects) -> None:
        self.newer = ""
        self._key = key
        self._wishes = wishes
        self._looked = False
        self._look_s = 0.0

    def check(self, now: float, then: Callable[[float], Iterable[Effect]]) -> Iterable[Effect]:
        """Go on with `then(now)`, unless the manifest is a newer kvmesh's.

        One that cannot be read, or is garbage, stops nobody: who writes reads it again before.
        """
        if self._looked and not self.newer:
            return then(now)
        if now < self._look_s:
            return ()
        self._look_s = now + LOOK_AGAIN_S

        def on_read(answer: Message, answered_s: float) -> Iterable[Effect]:
            self._look_s = 0.0
            if isinstance(answer, KeyRead):
                try:
                    decode_manifest(answer.value)
                except NewerError as error:
                    return self.stop(error, answered_s)
                except CodecError:
                    pass  # It will be replaced.
                self._looked, self.newer = True, ""
            return () if self.newer else then(answered_s)

        return (self._wishes.make(partial(ReadKey, self._key), on_read),)

    def warnings(self) -> tuple[str, ...]:
        """Return why nothing is written, in a line, while that is so."""
        return (f"no snapshots are written: {self.newer}",) if self.newer else ()

    def stop(self, error: NewerError, now: float) -> Iterable[Effect]:
        """Take what a reading of the manifest says: it is not this version's to write."""
        self._look_s = now + LOOK_AGAIN_S
        if self.newer == str(error):
            return ()
        self.newer = str(error)
        return (Log("warning", "no snapshots are written", {"why": self.newer}),)
