"""Leaving a newer manifest alone, and what to write for those who read."""

from collections.abc import Iterable

from kvmesh.actors.kernel import Effect, Send
from kvmesh.actors.messages import Reload
from kvmesh.actors.storage import Failed, KeyRead, ReadKey
from kvmesh.actors.version_guard import LOOK_AGAIN_S, VersionGuard
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration, encode_manifest
from kvmesh.core.journal.unread import Newer
from kvmesh.core.members.readers import HEAR_S
from kvmesh.formats import FIRST, FormatRange, Formats

BOTH = FormatRange(1, 2)
NEW = Formats(snapshot=BOTH, manifest=BOTH)


def manifest(number: int = 1, schema: int = 1) -> bytes:
    newest = SnapshotGeneration("idx", "today", 7, 1, "", 1, encoding=number, version="0.2.0")
    return encode_manifest(Manifest((newest,), schema))


class Desk:
    """Answers the guard's reading with `value`."""

    def __init__(self, value: bytes | None, own: Formats = FIRST, reload_to: str = "") -> None:
        self.value = value
        self.reads = 0
        self.wishes = PendingEffects()
        self.guard = VersionGuard("manifest.code", self.wishes, own, reload_to)

    def check(self, now: float) -> list[Effect]:
        """Return what came of a check, without the reading itself."""

        def then(at: float) -> Iterable[Effect]:
            return (Send("went on", Reload(str(at))),)

        found: list[Effect] = []
        for effect in self.guard.check(now, then):
            if isinstance(effect, ReadKey):
                self.reads += 1
                found += self.wishes.answer(KeyRead(effect.token, self.value), now)
            else:
                found.append(effect)
        return found


def test_a_newer_manifest_or_snapshot_stops_all_writing_and_names_its_version() -> None:
    schema, snapshot = Desk(manifest(schema=2)), Desk(manifest(number=2))

    assert (schema.check(0.0), snapshot.check(0.0)) == ([], [])

    store = "the snapshot store"
    assert schema.guard.newer == Newer(store, "manifest", 2, "0.2.0")
    assert snapshot.guard.newer == Newer(store, "snapshot", 2, "0.2.0")
    assert "schema 2, this build reads 1" in schema.guard.warnings()[0]
    assert "snapshot idx has format 2" in snapshot.guard.warnings()[0]


def test_what_is_read_again_is_loaded_since_nobody_else_may_know_it() -> None:
    desk = Desk(manifest(schema=2), reload_to="loader")
    desk.check(0.0)
    desk.value = manifest()

    early, late = desk.check(LOOK_AGAIN_S / 2), desk.check(LOOK_AGAIN_S)

    assert early == []
    assert isinstance(late[0], Send)
    assert (late[0].to, len(late)) == ("loader", 2)
    assert desk.guard.newer is None


def test_a_reading_that_failed_is_tried_again_at_once() -> None:
    desk = Desk(manifest(schema=2))
    desk.check(0.0)
    (wish,) = desk.guard.check(LOOK_AGAIN_S, lambda _: ())
    assert isinstance(wish, ReadKey)
    assert not [*desk.wishes.answer(Failed(wish.token, "away"), LOOK_AGAIN_S)]
    desk.value = manifest()

    desk.check(LOOK_AGAIN_S)

    assert desk.guard.newer is None


def test_all_readers_can_read_what_is_written() -> None:
    desk = Desk(manifest(2, 2), NEW)
    desk.check(0.0)
    guard = desk.guard

    young = guard.formats(0.0), guard.must_rewrite(0.0)
    alone = guard.formats(HEAR_S), guard.must_rewrite(HEAR_S)
    guard.readers.receive("old", FIRST, 0.0)
    older = guard.formats(HEAR_S), guard.must_rewrite(HEAR_S)

    assert (young, alone, older) == (((1, 1), True), ((2, 2), False), ((1, 1), True))
