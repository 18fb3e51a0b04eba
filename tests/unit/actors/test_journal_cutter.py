"""Cleaning up behind a stored snapshot."""

from kvmesh.actors.journal_cutter import JournalCutter
from kvmesh.actors.kernel import Effect
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.storage import (
    Deleted,
    DeleteObject,
    DeleteOrphans,
    Failed,
    ListObjects,
    ObjectListing,
    ObjectsListed,
    PurgeJournal,
)
from kvmesh.actors.wishes import PendingEffects
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration
from kvmesh.core.journal.replica import IndexReplica
from tests.unit.actors.effects import of


def generation(sequence: int, created: str = "today") -> SnapshotGeneration:
    return SnapshotGeneration(f"idx-{sequence}", created, sequence, 1, "", 1)


KEPT = Manifest((generation(30), generation(20), generation(10)))


class Desk:
    """A replica that has read 30 records of the stream "today", and its cutter."""

    def __init__(self) -> None:
        replica = IndexReplica(KvIndex())
        replica.open("today", 0.0)
        replica.skip(30, 0.0)
        self.wishes = PendingEffects()
        self.cutter = JournalCutter(replica, self.wishes, keep_s=5.0)

    def clean_up(self, manifest: Manifest = KEPT, *, may_purge: bool = True) -> list[Effect]:
        return list(self.cutter.clean_up(manifest, may_purge=may_purge))

    def purged(self, manifest: Manifest = KEPT, *, may_purge: bool = True) -> list[int]:
        effects = self.clean_up(manifest, may_purge=may_purge)
        return [one.up_to for one in of(PurgeJournal, effects)]


def peer(name: str, applied: int, created: str = "today") -> RouterHeartbeat:
    return RouterHeartbeat(
        name, "code", "", ready=True, epoch=1, applied_sequence=applied, created=created
    )


def test_the_journal_is_cut_behind_the_second_newest_generation() -> None:
    assert Desk().purged() == [20]


def test_what_a_live_replica_has_not_read_is_kept_until_it_is_gone() -> None:
    desk = Desk()
    desk.cutter.receive(peer("slow", 12))
    desk.cutter.receive(peer("elsewhere", 1, "another stream"))

    slow = desk.purged()
    desk.cutter.forget("slow")

    assert (slow, desk.purged()) == ([12], [20])


def test_nothing_is_cut_in_doubt_or_of_another_stream_but_objects_are_cleaned_up() -> None:
    desk = Desk()

    suspect = desk.clean_up(may_purge=False)
    other = desk.clean_up(Manifest((generation(40, "older"), generation(30, "older"))))

    for effects in (suspect, other):
        assert of(PurgeJournal, effects) == []
        assert len(of(ListObjects, effects)) == len(of(DeleteOrphans, effects)) == 1


def test_messages_are_counted_and_objects_that_nobody_names_deleted() -> None:
    desk = Desk()
    purge, listing, _ = desk.clean_up()
    assert isinstance(purge, PurgeJournal)
    assert isinstance(listing, ListObjects)
    objects = tuple(
        ObjectListing(name, 1, "", made_s)
        for name, made_s in (("idx-30", 100.0), ("idx-5", 94.0), ("idx-new", 99.0))
    )

    desk.wishes.answer(Deleted(purge.token, 17), 0.0)
    deleted = desk.wishes.answer(ObjectsListed(listing.token, objects), 0.0)

    assert desk.cutter.purged == 17
    assert [one.name for one in of(DeleteObject, deleted)] == ["idx-5"]


def test_a_failure_changes_nothing() -> None:
    desk = Desk()
    purge, listing, _ = desk.clean_up()
    assert isinstance(purge, PurgeJournal)
    assert isinstance(listing, ListObjects)

    failed = [
        *desk.wishes.answer(Failed(purge.token, "down"), 0.0),
        *desk.wishes.answer(Failed(listing.token, "down"), 0.0),
    ]

    assert (failed, desk.cutter.purged) == ([], 0)
