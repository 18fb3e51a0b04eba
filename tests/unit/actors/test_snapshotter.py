"""Writing and loading snapshots, one answer at a time."""

import hashlib
from collections.abc import Callable, Iterable

import msgspec

from kvmesh.actors.kernel import Effect, Log, Message, Wake
from kvmesh.actors.messages import (
    Reload,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    Started,
    TakeSnapshot,
    Tick,
)
from kvmesh.actors.snapshot_loader import OLDER_S, SnapshotLoader
from kvmesh.actors.snapshotter import Snapshotter, SnapshotterOptions, manifest_key
from kvmesh.actors.storage import (
    Deleted,
    DeleteKey,
    DeleteObject,
    Failed,
    FetchObject,
    KeyRead,
    KeyWritten,
    ListObjects,
    ObjectFetched,
    ObjectListing,
    ObjectsListed,
    ObjectStored,
    OpenTail,
    PurgeJournal,
    ReadKey,
    StoreObject,
    WriteKey,
)
from kvmesh.core.blocks.events import ROOT, Batch, Cleared, Event, Stored, WorkerId, encode_batch
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import (
    Manifest,
    SnapshotGeneration,
    decode_manifest,
    encode_manifest,
)
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.journal.unread import Newer
from kvmesh.formats import FormatRange, Formats

W1 = WorkerId("w1")
HASHES = sequence_hashes(list(range(64)), 16)


def fold(replica: IndexReplica, sequence: int) -> None:
    event = Stored(ROOT, pack_hashes(HASHES[:sequence]))
    replica.fold(sequence, W1, encode_batch(Batch(1, 1, sequence, [event])), 0.0)


def make_replica(sequence: int = 1) -> IndexReplica:
    replica = IndexReplica(KvIndex())
    replica.open("today", 0.0)
    for number in range(1, sequence + 1):
        fold(replica, number)
    return replica


class Desk:
    """Answers an actor's wishes like a store that works, unless `refuse` says otherwise."""

    def __init__(self, actor: Snapshotter | SnapshotLoader) -> None:
        self.actor = actor
        self.now = 0.0
        self.keys: dict[str, tuple[bytes, int]] = {}
        self.objects: dict[str, bytes] = {}
        self.effects: list[Effect] = []
        self.refuse: Callable[[Effect], Message | None] = lambda _: None
        self.revision = 0

    def tell(self, message: Message) -> list[Effect]:
        """Deliver a message and all answers it leads to; return every effect on the way."""
        seen: list[Effect] = []
        todo: list[Message] = [message]
        while todo:
            for effect in self.actor.receive(todo.pop(0), self.now):
                seen.append(effect)
                todo += self.answer(effect)
        self.effects += seen
        return seen

    def answer(self, effect: Effect) -> Iterable[Message]:  # noqa: PLR0911, PLR0912  one case a wish
        refused = self.refuse(effect)
        if refused is not None:
            return [refused]
        match effect:
            case Wake(0.0, message):
                return [message]
            case ReadKey(key, token):
                value, revision = self.keys.get(key, (None, 0))
                return [KeyRead(token, value, revision)]
            case WriteKey(key, value, expected, token):
                if expected != (self.keys[key][1] if key in self.keys else None):
                    return [Failed(token, "another", conflict=True)]
                self.revision += 1
                self.keys[key] = (value, self.revision)
                return [KeyWritten(token, self.revision)]
            case StoreObject(name, data, token):
                self.objects[name] = data
                return [ObjectStored(token, len(data), hashlib.sha256(data).hexdigest())]
            case FetchObject(name, token):
                if name not in self.objects:
                    return [Failed(token, f"no {name}")]
                return [ObjectFetched(token, self.objects[name])]
            case ListObjects(token):
                listed = (
                    ObjectListing(name, len(data), "", float(number))
                    for number, (name, data) in enumerate(sorted(self.objects.items()))
                )
                return [ObjectsListed(token, tuple(listed))]
            case PurgeJournal(up_to, token):
                return [Deleted(token, up_to)]
            case _:
                return []

    def manifest(self) -> Manifest:
        value, _ = self.keys.get(manifest_key("code"), (None, 0))
        return decode_manifest(value)

    def logs(self) -> list[str]:
        return [effect.event for effect in self.effects if isinstance(effect, Log)]


def make_writer(replica: IndexReplica, may: Callable[[], bool] = lambda: True) -> Desk:
    options = SnapshotterOptions("r0", "code", every_messages=2, every_s=60.0, keep_s=0.0)
    return Desk(Snapshotter(replica, options, may))


def statistics(desk: Desk) -> tuple[int, int]:
    assert isinstance(desk.actor, Snapshotter)
    figures = desk.actor.statistics(desk.now)
    return figures.taken, figures.failed


def test_a_snapshot_is_verified_before_the_manifest_names_it() -> None:
    desk = make_writer(make_replica(2))

    desk.tell(Started())

    kinds = [type(one) for one in desk.effects if not isinstance(one, Wake | Log)]
    first = kinds.index(StoreObject)
    assert kinds[first : first + 4] == [StoreObject, FetchObject, ReadKey, WriteKey]
    newest = desk.manifest().generations[0]
    assert (newest.sequence, newest.created, newest.blocks) == (2, "today", 2)
    assert statistics(desk) == (1, 0)
    assert isinstance(desk.actor, Snapshotter)
    figures = desk.actor.statistics(desk.now + 5.0)
    assert 4.0 < figures.age_s < 6.0
    assert 0.0 <= figures.took_s < 5.0
    assert PurgeJournal not in kinds


def test_the_journal_is_purged_up_to_the_second_generation_and_the_slowest_peer() -> None:
    replica = make_replica(2)
    desk = make_writer(replica)
    desk.tell(Started())
    for number in (3, 4):
        fold(replica, number)

    desk.tell(Tick("lease"))
    assert [one for one in desk.effects if isinstance(one, PurgeJournal)][-1].up_to == 2

    slow = RouterHeartbeat("r1", "code", "", True, 1, applied_sequence=1, created="today")
    desk.tell(RouterSeen(slow))
    fold(replica, 5)
    desk.tell(TakeSnapshot())
    assert [one for one in desk.effects if isinstance(one, PurgeJournal)][-1].up_to == 1

    desk.tell(RouterGone("r1"))
    fold(replica, 6)
    desk.tell(TakeSnapshot())
    assert [one for one in desk.effects if isinstance(one, PurgeJournal)][-1].up_to == 5
    assert any(isinstance(one, DeleteObject) for one in desk.effects)


def test_nothing_is_taken_without_the_lease_or_news_or_while_the_index_is_loaded() -> None:
    replica = make_replica(2)
    may = [False]
    desk = make_writer(replica, lambda: may[0])

    desk.tell(Started())
    assert statistics(desk) == (0, 0)

    may[0] = True
    desk.tell(Tick("lease"))
    assert statistics(desk) == (1, 0)

    desk.now = 1000.0
    desk.tell(Tick("lease"))
    assert statistics(desk) == (1, 0)

    desk.keys["lease.snap.code"] = (b"r1", 99)
    desk.tell(Tick("lease"))
    fold(replica, 3)
    desk.tell(TakeSnapshot())
    assert statistics(desk) == (1, 0)


def test_an_index_that_is_loaded_anew_is_not_written_further() -> None:
    may = [True]
    desk = make_writer(make_replica(2), lambda: may[0])

    def stop_at_slice(effect: Effect) -> None:
        if isinstance(effect, Wake) and effect.message == Tick("slice"):
            may[0] = False

    desk.refuse = stop_at_slice
    desk.tell(Started())

    assert statistics(desk) == (0, 1)
    assert desk.objects == {}
    assert desk.tell(Tick("slice")) == []


def refusing(kind: type[Effect], key: str = "") -> Callable[[Effect], Message | None]:
    def refuse(effect: Effect) -> Message | None:
        if isinstance(effect, kind) and key in str(getattr(effect, "key", "")):
            token = getattr(effect, "token", 0)
            return Failed(token, "out of order")
        return None

    return refuse


def test_every_failed_step_gives_the_snapshot_up_and_the_next_one_succeeds() -> None:
    for refuse in (
        refusing(StoreObject),
        refusing(FetchObject),
        refusing(ReadKey, "manifest"),
        refusing(WriteKey, "manifest"),
    ):
        desk = make_writer(make_replica(2))
        desk.refuse = refuse
        desk.tell(Started())
        assert statistics(desk) == (0, 1)
        assert desk.manifest() == Manifest()

        desk.refuse = lambda _: None
        desk.tell(TakeSnapshot())
        assert statistics(desk) == (1, 1)


def test_what_reads_back_differently_is_not_named() -> None:
    desk = make_writer(make_replica(2))
    desk.refuse = lambda effect: (
        ObjectFetched(effect.token, b"rot") if isinstance(effect, FetchObject) else None
    )

    desk.tell(Started())

    assert statistics(desk) == (0, 1)
    assert desk.manifest() == Manifest()


NEWER = b'{"schema":2,"generations":"of another shape"}'


def test_a_newer_kvmeshs_manifest_is_never_written_over() -> None:
    desk = make_writer(make_replica(2))
    desk.keys[manifest_key("code")] = (NEWER, 7)

    desk.tell(Started())
    for second in range(1, 130):
        desk.now = float(second)
        desk.tell(Tick("lease"))
    desk.tell(TakeSnapshot())

    assert isinstance(desk.actor, Snapshotter)
    assert desk.actor.warnings() == (
        (
            "no snapshots are written: snapshot manifest has schema 2, this build reads 1: "
            "it is a newer kvmesh's"
        ),
    )
    assert desk.keys == {manifest_key("code"): (NEWER, 7)}
    assert not [one for one in desk.effects if isinstance(one, WriteKey | StoreObject)]
    assert len([one for one in desk.effects if isinstance(one, ReadKey)]) == 65
    newer = desk.actor.guard.newer
    assert newer == Newer("the snapshot store", "manifest", 2)

    del desk.keys[manifest_key("code")]
    desk.now = 200.0
    desk.tell(Tick("lease"))
    assert desk.actor.warnings() == ()
    assert statistics(desk) == (1, 0)


def test_a_newer_kvmesh_that_comes_meanwhile_gets_lease_and_manifest() -> None:
    replica = make_replica(2)
    desk = make_writer(replica)
    desk.tell(Started())
    desk.keys[manifest_key("code")] = (NEWER, 7)
    stored = set(desk.objects)
    fold(replica, 3)

    effects = desk.tell(TakeSnapshot())

    deleted = {one.name for one in effects if isinstance(one, DeleteObject)}
    assert deleted == set(desk.objects) - stored
    assert [one.key for one in effects if isinstance(one, DeleteKey)] == ["lease.snap.code"]
    assert not [one for one in effects if isinstance(one, PurgeJournal)]
    assert desk.keys[manifest_key("code")] == (NEWER, 7)
    assert isinstance(desk.actor, Snapshotter)
    assert not desk.actor.statistics(desk.now).holder
    assert statistics(desk) == (1, 1)

    desk.refuse = refusing(ReadKey, "manifest")
    desk.now = 100.0
    desk.tell(Tick("lease"))
    assert desk.actor.warnings()
    assert not desk.actor.statistics(desk.now).holder


def test_a_snapshot_that_fails_again_and_again_is_tried_ever_later() -> None:
    desk = make_writer(make_replica(2))
    desk.refuse = refusing(StoreObject)

    tries: list[float] = []
    for second in range(200):
        desk.now = float(second)
        before = statistics(desk)
        desk.tell(Tick("lease"))
        if statistics(desk) != before:
            tries.append(desk.now)

    assert tries == [0.0, 10.0, 30.0, 70.0, 130.0, 190.0]
    desk.refuse = lambda _: None
    desk.tell(TakeSnapshot())
    assert statistics(desk) == (1, 6)


def test_the_lease_is_read_back_when_a_renewal_got_no_answer() -> None:
    desk = make_writer(make_replica(2))
    desk.refuse = refusing(WriteKey, "lease")
    desk.tell(Started())
    assert statistics(desk) == (0, 0)

    desk.keys["lease.snap.code"] = (b"r0", 5)
    desk.tell(Tick("lease"))
    desk.refuse = lambda _: None
    desk.tell(Tick("lease"))
    assert statistics(desk) == (1, 0)


def test_one_renewal_is_under_way_at_a_time_and_a_failed_read_changes_nothing() -> None:
    desk = make_writer(make_replica(2))
    silent = Failed(-1, "nobody waits for this")
    desk.refuse = lambda effect: silent if isinstance(effect, WriteKey) else None

    desk.tell(Tick("lease"))
    desk.tell(Tick("lease"))
    assert len([one for one in desk.effects if isinstance(one, WriteKey)]) == 1

    desk = make_writer(make_replica(2))
    desk.refuse = lambda effect: (
        Failed(getattr(effect, "token", 0), "down")
        if isinstance(effect, WriteKey | ReadKey | ListObjects)
        else None
    )
    desk.tell(Tick("lease"))
    assert statistics(desk) == (0, 0)


def test_garbage_in_the_lease_is_told_and_written_over_when_its_time_is_over() -> None:
    desk = make_writer(make_replica(2))
    desk.keys["lease.snap.code"] = (b'{"seq":1}', 99)

    reported = [one for one in desk.tell(Started()) if isinstance(one, Log)]
    desk.now = 3.0
    again = [one for one in desk.tell(Tick("lease")) if isinstance(one, Log)]

    assert [one.event for one in reported] == ["lease names no holder, it is free after its time"]
    assert (again, statistics(desk)) == ([], (0, 0))
    desk.now = 4.0
    taken = [one.event for one in desk.tell(Tick("lease")) if isinstance(one, Log)]
    assert taken[0] == "lease written over"
    assert desk.keys["lease.snap.code"][0] == b"r0"
    assert statistics(desk) == (1, 0)
    assert isinstance(desk.actor, Snapshotter)
    assert desk.actor.statistics(4.0).overridden == 1


def test_a_lease_that_cannot_be_read_after_a_refusal_is_asked_for_again() -> None:
    desk = make_writer(make_replica(2))
    desk.keys["lease.snap.code"] = (b"r1", 99)
    desk.refuse = refusing(ReadKey, "lease")

    desk.tell(Tick("lease"))
    del desk.keys["lease.snap.code"]
    desk.tell(Tick("lease"))

    assert statistics(desk) == (1, 0)


def test_garbage_in_the_manifest_is_told_and_written_over() -> None:
    desk = make_writer(make_replica(2))
    desk.keys[manifest_key("code")] = (b"\xff", 99)

    reported = [one for one in desk.tell(Started()) if isinstance(one, Log)]

    assert "bad snapshot manifest is written over" in [one.event for one in reported]
    assert len(decode_manifest(desk.keys[manifest_key("code")][0]).generations) == 1
    assert isinstance(desk.actor, Snapshotter)
    assert desk.actor.statistics(0.0).overridden == 1


def snapshot_of(replica: IndexReplica) -> Desk:
    desk = make_writer(replica)
    desk.tell(Started())
    desk.tell(TakeSnapshot())
    return desk


def make_loader(replica: IndexReplica, stored: Desk) -> Desk:
    desk = Desk(SnapshotLoader(replica, manifest_key("code")))
    desk.keys, desk.objects = dict(stored.keys), dict(stored.objects)
    return desk


def test_a_bad_manifest_or_object_leads_to_the_journal() -> None:
    stored = snapshot_of(make_replica(3))
    name = stored.manifest().generations[0].name
    data = stored.objects[name]
    lying = SnapshotGeneration(name, "today", 3, 4, hashlib.sha256(b"junk").hexdigest(), fence=1)
    for change in (
        lambda desk: desk.keys.update({manifest_key("code"): (b"{", 9)}),
        lambda desk: desk.objects.clear(),
        lambda desk: desk.objects.update({name: data[:-1] + b"?"}),
        lambda desk: (
            desk.objects.update({name: b"junk"}),
            desk.keys.update({manifest_key("code"): (encode_manifest(Manifest((lying,))), 9)}),
        ),
    ):
        desk = make_loader(IndexReplica(KvIndex()), stored)
        change(desk)
        desk.tell(Started())
        assert OpenTail(0, "") in desk.effects
        assert isinstance(desk.actor, SnapshotLoader)
        assert desk.actor.statistics().rejected == 1


def test_an_unreadable_manifest_is_asked_for_again() -> None:
    desk = make_loader(IndexReplica(KvIndex()), snapshot_of(make_replica(3)))
    failures = [1, 2]

    def refuse(effect: Effect) -> Message | None:
        if isinstance(effect, ReadKey) and failures:
            return Failed(effect.token, f"down {failures.pop()}")
        return None

    desk.refuse = refuse
    desk.tell(Started())
    desk.tell(Tick("manifest"))
    desk.tell(Tick("manifest"))

    assert desk.logs().count("snapshot manifest unreadable") == 2
    assert OpenTail(3, "today") in desk.effects


def test_a_store_that_fails_is_asked_less_and_less_often_and_the_error_told_once() -> None:
    desk = make_loader(IndexReplica(KvIndex()), snapshot_of(make_replica(3)))
    desk.refuse = refusing(ReadKey)

    desk.tell(Started())
    for _ in range(9):
        desk.tell(Tick("manifest"))

    waits = [one.after_s for one in desk.effects if isinstance(one, Wake)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    assert desk.logs().count("snapshot manifest unreadable") == 1

    desk.refuse = lambda _: None
    desk.tell(Tick("manifest"))
    assert OpenTail(3, "today") in desk.effects
    desk.refuse = refusing(ReadKey)
    assert Wake(0.1, Tick("manifest")) in desk.tell(Reload("journal gap", at_least=9))


def test_a_snapshot_from_before_a_gap_is_no_cure_for_it() -> None:
    replica = make_replica(3)
    desk = make_loader(replica, snapshot_of(replica))
    replica.skip(9, 0.0)

    desk.tell(Reload("journal gap", at_least=9))

    assert not any(isinstance(effect, OpenTail) for effect in desk.effects)
    assert "no usable snapshot, asking the workers" in desk.logs()


def unread_record(replica: IndexReplica, sequence: int, number: int = 3) -> None:
    events: list[Event] = [Cleared(), Stored(ROOT, pack_hashes(HASHES))]
    replica.fold(sequence, W1, encode_batch(Batch(number, 1, sequence, events)), 0.0)


def test_who_cannot_read_all_gives_up_the_lease_and_takes_it_when_it_can() -> None:
    replica = make_replica(2)
    desk = make_writer(replica)
    desk.tell(Started())
    assert isinstance(desk.actor, Snapshotter)
    before = desk.actor.statistics(0.0)

    unread_record(replica, 3)
    released = desk.tell(Tick("lease"))
    idle = desk.tell(Tick("lease"))
    unread_record(replica, 4, number=1)
    del desk.keys["lease.snap.code"]
    desk.tell(Tick("lease"))

    assert (before.taken, before.holder) == (1, True)
    assert [one.key for one in released if isinstance(one, DeleteKey)] == ["lease.snap.code"]
    assert [type(one) for one in idle] == [Wake]
    assert statistics(desk) == (2, 0)
    assert not [one for one in desk.effects if isinstance(one, PurgeJournal)]


def test_a_journal_that_is_not_cut_is_said_and_counted() -> None:
    replica = make_replica(2)
    desk = make_writer(replica)
    assert isinstance(desk.actor, Snapshotter)
    replica.skip(2, 0.0)
    desk.tell(Started())
    fold(replica, 3)
    desk.tell(TakeSnapshot())

    uncut = desk.actor.statistics(0.0).uncut
    warned = desk.actor.warnings()
    fold(replica, 4)
    replica.recovery.receive(W1, 1, 4, 0.0)
    desk.tell(TakeSnapshot())

    assert (uncut, warned) == (2, ("the journal is not cut: events are missing of 'w1'",))
    assert (desk.actor.statistics(0.0).uncut, desk.actor.warnings()) == (0, ())


def test_an_index_that_is_empty_displaces_none_that_is_not() -> None:
    replica = make_replica(2)
    desk = make_writer(replica)
    desk.tell(Started())
    before, stored = desk.manifest(), set(desk.objects)
    data = encode_batch(Batch(1, 1, 3, [Cleared()]))
    replica.fold(3, W1, data, 0.0)

    effects = [*desk.tell(TakeSnapshot()), *desk.tell(TakeSnapshot())]

    assert desk.manifest() == before
    deleted = {one.name for one in effects if isinstance(one, DeleteObject)}
    assert deleted == set(desk.objects) - stored
    assert [one.event for one in effects if isinstance(one, Log)] == ["snapshot waits"]
    assert statistics(desk) == (1, 0)
    assert isinstance(desk.actor, Snapshotter)
    assert "the index is empty" in desk.actor.warnings()[0]
    fold(replica, 4)
    desk.tell(TakeSnapshot())
    assert desk.manifest().generations[0].blocks > 0
    assert desk.actor.warnings() == ()


def test_snapshots_are_written_anew_for_a_replica_that_does_not_read_the_last() -> None:
    both = FormatRange(1, 3)
    new = Formats(snapshot=both, manifest=both)
    options = SnapshotterOptions("r0", "code", every_messages=2, formats=new, version="0.2.0")
    replica = make_replica(2)
    desk = Desk(Snapshotter(replica, options, lambda: True))
    desk.tell(Started())
    desk.now = 2.0
    fold(replica, 3)
    desk.tell(TakeSnapshot())
    newest = decode_manifest(desk.keys[manifest_key("code")][0], both)

    fold(replica, 4)
    desk.tell(Tick("lease"))
    quiet = statistics(desk)
    desk.tell(RouterSeen(RouterHeartbeat("old", "code", "", ready=True, epoch=1)))
    desk.tell(Tick("lease"))

    assert (newest.schema, newest.generations[0].encoding) == (3, 3)
    assert newest.generations[0].version == "0.2.0"
    assert (quiet, statistics(desk)) == ((2, 0), (3, 0))
    assert desk.manifest().schema == 1
    assert desk.manifest().generations[0].encoding == 1


def test_a_newer_manifest_or_object_is_left_and_an_older_generation_loaded() -> None:
    replica = make_replica(2)
    stored = make_writer(replica)
    stored.tell(Started())
    fold(replica, 3)
    stored.tell(TakeSnapshot())
    key = manifest_key("code")
    kept = stored.manifest()
    marked = msgspec.structs.replace(kept.generations[0], encoding=3, version="0.2.0")
    name = kept.generations[0].name
    body = b"KVMINDX\x03" + stored.objects[name][8:]
    renamed = msgspec.structs.replace(
        kept.generations[0], sha256=hashlib.sha256(body).hexdigest(), size=len(body)
    )

    found: list[tuple[Newer | None, list[int], int]] = []
    for generations, schema, objects in (
        ((marked, kept.generations[1]), 1, {}),
        ((renamed, kept.generations[1]), 1, {name: body}),
        (kept.generations, 2, {}),
    ):
        desk = make_loader(IndexReplica(KvIndex()), stored)
        desk.objects |= objects
        desk.keys[key] = (encode_manifest(Manifest(generations, schema)), 9)
        desk.tell(Started())
        assert isinstance(desk.actor, SnapshotLoader)
        desk.now = OLDER_S
        if desk.actor.loading:
            desk.tell(Tick("manifest"))
        assert [one for one in desk.effects if isinstance(one, Log) and one.level == "error"] == []
        tails = [one.after for one in desk.effects if isinstance(one, OpenTail)]
        found.append((desk.actor.newer, tails, desk.actor.statistics().rejected))

    assert found == [
        (Newer(f"snapshot {name}", "snapshot", 3, "0.2.0"), [2], 1),
        (Newer(f"snapshot {name}", "snapshot", 3), [2], 1),
        (Newer("the snapshot manifest", "manifest", 2), [0], 1),
    ]


def test_a_snapshot_waits_for_a_live_worker_of_which_nothing_was_read() -> None:
    replica = make_replica(2)
    replica.recovery.receive(WorkerId("w2"), 1, 7, 0.0)
    desk = make_writer(replica)

    desk.tell(Started())
    desk.tell(Tick("lease"))

    assert statistics(desk) == (0, 0)
    assert desk.logs() == ["snapshot waits"]
    assert isinstance(desk.actor, Snapshotter)
    assert desk.actor.warnings() == ("no snapshots are written: nothing was read yet of 'w2'",)
    replica.recovery.forget(WorkerId("w2"))
    desk.tell(Tick("lease"))
    assert statistics(desk) == (1, 0)
    assert desk.actor.warnings() == ()
