from kvmesh.actors.indexer import Indexer, IndexerOptions
from kvmesh.actors.kernel import Effect, Log, Message, Publish
from kvmesh.actors.member_messages import Mispredicted, Reread
from kvmesh.actors.messages import (
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
    Reload,
    Resync,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    Started,
    Tick,
    TrustChanged,
    WorkerGone,
    WorkerHeartbeat,
    WorkerSeen,
)
from kvmesh.actors.wire import decode
from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Stored,
    WorkerId,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.ordering import NOTHING_FITS
from kvmesh.core.journal.recovery import RecoveryOptions
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members.worker_info import Trust
from tests.unit.actors.effects import of, sent

A = WorkerId("a")


def stored(parent: int, *hashes: int) -> Stored:
    return Stored(parent, pack_hashes(hashes))


def heartbeat(last_seq: int = 2, epoch: int = 1) -> WorkerHeartbeat:
    return WorkerHeartbeat(A, "code", epoch, last_seq, "http://a", (), 16)


class Driver:
    """A replica that has read one worker's two blocks."""

    def __init__(self, *, reload_to: str = "", sweep_budget: int = 4096) -> None:
        options = IndexerOptions(
            "r1",
            "code",
            listeners=("registry",),
            reload_to=reload_to,
            retain_s=60.0,
            sweep_budget=sweep_budget,
        )
        self.indexer = Indexer(IndexReplica(KvIndex(), RecoveryOptions(grace_s=0.5)), options)
        self.replica = self.indexer.replica
        self.now = 0.0
        self.tell(Started())
        self.tell(JournalOpened("today"))
        self.record(1, Cleared(), stored(ROOT, 1, 2))
        self.tell(CaughtUp(1))
        self.tell(Tick("sweep"))

    def tell(self, message: Message) -> list[Effect]:
        return list(self.indexer.receive(message, self.now))

    def record(self, first_seq: int, *events: Event, epoch: int = 1) -> list[Effect]:
        data = encode_batch(Batch(VERSION, epoch, first_seq, list(events)))
        return self.tell(JournalRecord(self.replica.applied_sequence + 1, A, data))

    def trust(self) -> Trust:
        return self.indexer.trust(A, self.now)

    def blocks(self) -> int:
        return self.replica.index.blocks(A)


def reported(effects: list[Effect]) -> list[Trust]:
    return [one.trust for one in sent(effects, "registry") if isinstance(one, TrustChanged)]


def test_what_is_read_is_exact_once_the_history_is_caught_up() -> None:
    indexer = Indexer(
        IndexReplica(KvIndex()), IndexerOptions("r1", "code", listeners=("registry",))
    )
    data = encode_batch(Batch(VERSION, 1, 1, [stored(ROOT, 1)]))
    before = list(indexer.receive(JournalRecord(1, A, data), 0.0))

    after = list(indexer.receive(CaughtUp(1), 0.0))

    assert (reported(before), reported(after)) == ([Trust.CATCHING_UP], [Trust.EXACT])
    assert indexer.caught_up


def test_a_tail_that_catches_up_again_forgets_nobody_that_was_heard() -> None:
    driver = Driver()

    driver.tell(WorkerSeen(heartbeat()))
    driver.tell(CaughtUp(1))
    driver.now = 61.0
    driver.tell(Tick("check"))

    assert (driver.blocks(), driver.trust()) == (2, Trust.EXACT)
    assert driver.indexer.caught_up


def test_a_restarted_replica_waits_a_moment_for_the_workers_it_knows() -> None:
    driver = Driver()

    waits = [driver.indexer.awaits(now) for now in (0.0, 1.1, 1.2)]
    driver.tell(WorkerSeen(heartbeat()))

    known = "waiting for the heartbeats of known workers"
    assert waits == [known, known, ""]
    assert not driver.indexer.awaits(0.5)


def test_a_worker_that_died_before_the_start_is_forgotten_in_time() -> None:
    # As from a snapshot: the indexer itself has seen no record of the worker.
    replica = IndexReplica(KvIndex())
    replica.fold(1, A, encode_batch(Batch(VERSION, 1, 1, [stored(ROOT, 1)])), 0.0)
    indexer = Indexer(replica, IndexerOptions("r1", "code", retain_s=60.0))

    list(indexer.receive(CaughtUp(1), 100.0))
    list(indexer.receive(Tick("check"), 159.0))
    before = replica.index.blocks(A)
    list(indexer.receive(Tick("check"), 160.0))

    assert (before, replica.index.blocks(A)) == (1, 0)
    assert indexer.statistics().workers_forgotten == 1


def test_a_gap_is_told_and_asked_about_until_it_is_closed() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))

    assert reported(driver.record(5, stored(1, 9))) == [Trust.CATCHING_UP]
    assert of(Publish, driver.tell(Tick("check"))) == []
    driver.now = 1.0
    [request] = of(Publish, driver.tell(Tick("check")))

    assert request.subject == "kvmesh.ctl.code.a"
    assert decode(request.data, Resync) == Resync(A, 1, 3, "r1")
    assert reported(driver.record(3, stored(2, 3), stored(3, 4))) == [Trust.EXACT]
    assert driver.indexer.statistics().resyncs_asked == 1


def test_nobody_is_asked_before_the_history_is_read() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))
    driver.record(5, stored(1, 9))
    driver.tell(JournalOpened("today"))
    driver.now = 1.0

    assert of(Publish, driver.tell(Tick("check"))) == []


def test_trust_in_a_worker_that_joins_again_is_told_again() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat(), joined=True))

    assert reported(driver.tell(WorkerSeen(heartbeat()))) == []
    assert reported(driver.tell(WorkerSeen(heartbeat(), joined=True))) == [Trust.EXACT]


def test_a_dead_workers_blocks_are_kept_for_a_while_and_then_dropped() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))
    driver.now = 10.0
    driver.tell(WorkerGone(A))
    driver.now = 69.0
    driver.tell(Tick("check"))
    assert driver.blocks() == 2

    driver.now = 70.0
    driver.tell(Tick("check"))

    assert driver.blocks() == 0
    assert driver.replica.cursors() == {}
    assert driver.indexer.statistics().workers_forgotten == 1


def test_a_worker_that_comes_back_in_time_keeps_its_blocks() -> None:
    driver = Driver()
    driver.tell(WorkerGone(A))
    driver.now = 30.0
    driver.tell(WorkerSeen(heartbeat()))
    driver.now = 100.0
    driver.tell(Tick("check"))

    assert driver.blocks() == 2


def test_cleaning_up_goes_in_slices() -> None:
    driver = Driver(sweep_budget=1)
    driver.record(3, Cleared())
    slices = 0

    while driver.tell(Tick("sweep")):
        slices += 1

    assert slices > 1
    assert driver.tell(Tick("sweep")) == []


def peer(driver: Driver, *, wrong: bool = False, router: str = "r2") -> RouterSeen:
    claim = driver.replica.claim()
    return RouterSeen(
        RouterHeartbeat(
            router,
            "code",
            "",
            ready=True,
            epoch=1,
            applied_sequence=claim.sequence,
            created="today",
            digest=claim.digest ^ wrong,
            scope=claim.scope,
        )
    )


def test_replicas_that_agree_say_nothing() -> None:
    driver = Driver()

    assert driver.tell(peer(driver)) == []
    assert driver.indexer.statistics().replica.digests_compared == 1
    assert driver.tell(RouterGone("r2")) == []


def test_a_replica_does_not_compare_itself_with_itself() -> None:
    driver = Driver()

    assert driver.tell(peer(driver, wrong=True, router="r1")) == []


def test_disagreement_is_loud_and_has_every_worker_start_over() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))

    effects = driver.tell(peer(driver, wrong=True))

    assert [log.level for log in of(Log, effects)] == ["error", "warning"]
    assert reported(effects) == [Trust.CATCHING_UP]
    driver.now = 1.0
    [request] = of(Publish, driver.tell(Tick("check")))
    assert decode(request.data, Resync).next_seq == 0


def test_disagreement_is_repaired_once_per_pause() -> None:
    driver = Driver(reload_to="snapshotter")

    assert sent(driver.tell(peer(driver, wrong=True)), "snapshotter") == [
        Reload("index digest mismatch")
    ]
    assert driver.tell(peer(driver, wrong=True)) == []
    driver.now = 11.0
    assert driver.tell(peer(driver, wrong=True)) != []
    assert driver.indexer.statistics().mismatches == 3


def test_a_remade_journal_is_read_from_its_start() -> None:
    driver = Driver()

    effects = driver.tell(JournalRecreated("tomorrow"))

    assert of(Log, effects)[0].event == "journal was remade"
    assert (driver.replica.applied_sequence, driver.replica.created) == (0, "tomorrow")
    assert driver.blocks() == 2
    assert driver.indexer.statistics().recreations == 1


def test_messages_of_no_concern_are_ignored() -> None:
    assert Driver().tell(Message()) == []


def test_a_worker_whose_predictions_miss_is_asked_for_all_it_holds() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))

    effects = driver.tell(Mispredicted(A, 12, 20))

    [request] = of(Publish, effects)
    assert decode(request.data, Resync) == Resync(A, 1, NOTHING_FITS, "r1")
    [log] = of(Log, effects)
    assert (log.level, log.fields["misses"]) == ("warning", 12)


def test_when_that_does_not_help_its_sidecar_is_asked_to_read_the_engine_anew() -> None:
    driver = Driver()
    driver.tell(WorkerSeen(heartbeat()))

    [request] = of(Publish, driver.tell(Mispredicted(A, 12, 20, again=True)))

    assert request.subject == "kvmesh.ctl.code.a"
    assert decode(request.data, Reread) == Reread(A)


def test_lag_is_of_records_that_say_when_they_were_stored_once_the_history_is_read() -> None:
    driver = Driver()
    driver.now = 10.0
    data = [encode_batch(Batch(VERSION, 1, seq, [stored(ROOT, seq)])) for seq in (3, 4, 5)]

    driver.tell(JournalRecord(2, A, data[0], 9.75))
    driver.tell(JournalRecord(3, A, data[1]))
    driver.tell(JournalOpened("today"))
    driver.tell(JournalRecord(4, A, data[2], 1.0))

    statistics = driver.indexer.statistics()
    assert (statistics.lag_ms_p50, statistics.lag_ms_p99) == (250.0, 250.0)
    assert driver.indexer.lag.seconds.total == 0.25


def test_records_purged_unread_leave_everybody_in_doubt() -> None:
    driver = Driver(reload_to="snapshotter")

    effects = driver.tell(JournalGap(2, 40))

    assert sent(effects, "snapshotter") == [Reload("journal gap", at_least=40)]
    assert reported(effects) == [Trust.CATCHING_UP]
    assert driver.replica.applied_sequence == 40
    assert reported(driver.tell(WorkerSeen(heartbeat()))) == [Trust.EXACT]
    assert driver.indexer.statistics().gaps == 1
