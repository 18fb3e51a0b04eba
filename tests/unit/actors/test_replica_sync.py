import random

import msgspec

from kvmesh.actors.kernel import Effect, Log, Message, Publish, Wake
from kvmesh.actors.messages import (
    BookingsWait,
    BusMessage,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    SharesChanged,
    Started,
    StateWanted,
    Tick,
)
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.wire import decode, encode
from kvmesh.core.admission.shares import ShareRow, Shares, key_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict, status_attempt
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.peer_records import (
    Named,
    PlacedRecord,
    Record,
    RecordBatch,
    read_records,
)
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.formats import OWN, Formats
from tests.unit.actors.effects import of

W = WorkerId("w")


class Driver:
    def __init__(
        self,
        router: str = "r1",
        max_events: int = 256,
        max_bytes: int = 65536,
        reads: Formats = OWN,
    ) -> None:
        self.sequences = new_sequences(4, lease_s=10.0)
        self.scheduler = Scheduler(
            RouterOptions(block_size=4),
            random.Random(1),
            membership=Membership(),
            sequences=self.sequences,
            routed=new_approx(),
        )
        self.scheduler.listen(new_approx(graded=True))
        options = ReplicaSyncOptions(
            router, "code", 7, max_events=max_events, max_bytes=max_bytes, reads=reads
        )
        self.sync = ReplicaSync(self.scheduler, options)
        self.now = 0.0
        self.published: list[Publish] = []
        self._waits = False
        self.sync.outbox.on_first = self._note_first
        self.sync.receive(Started(), self.now)

    def publish(self, message: Message) -> list[Effect]:
        effects = list(self.sync.receive(message, self.now))
        self.published += of(Publish, effects)
        return effects

    def _note_first(self) -> None:
        self._waits = True

    def send(self) -> list[Effect]:
        """Do as the driver does when the outbox says that something waits."""
        waits, self._waits = self._waits, False
        return self.publish(BookingsWait()) if waits else []

    def placed(self, request_id: str) -> list[Effect]:
        self.sync.outbox.placed(self.sequences.bookings[request_id])
        return self.send()

    def first_token(self, request_id: str) -> list[Effect]:
        self.sync.outbox.first_token(request_id)
        return self.send()

    def finished(self, request_id: str, attempt: Attempt = SERVED) -> list[Effect]:
        self.sync.outbox.ended(request_id, attempt)
        return self.send()

    def book(self, request_id: str, tokens: int = 40) -> list[Effect]:
        self.sequences.add(request_id, W, Demand(tokens, 30, 20), self.now)
        return self.placed(request_id)

    def route(self, request_id: str, hashes: list[int]) -> list[Effect]:
        self.scheduler.workers.membership.add(W, self.now)
        self.scheduler.schedule(
            RouteRequest(request_id, BlockHashes.of(hashes, 4), len(hashes) * 4), self.now
        )
        return self.placed(request_id)

    def batches(self) -> list[RecordBatch]:
        return [
            read_records("r1", one.data)
            for one in self.published
            if one.subject.endswith(".seq.code.r1")
        ]


NAMED = Named(0, W)
PLACED = PlacedRecord("r1#1", 0, 10, 40, 30, 5)


def state(*events: Record) -> list[Record]:
    return [StateBegins(), NAMED, *events, StateEnds()]


def test_a_booking_after_a_quiet_time_is_sent_at_once() -> None:
    driver = Driver()
    assert driver.book("q")[1:] == [Wake(0.005, Tick("flush"))]
    assert driver.publish(Tick("flush")) == []

    assert driver.first_token("q")[1:] == [Wake(0.005, Tick("flush"))]

    assert driver.published[0].subject == "kvmesh.seq.code.r1"
    assert [one.events for one in driver.batches()] == [[NAMED, PLACED], [Prefilled("r1#1")]]


def test_what_follows_within_five_milliseconds_is_sent_together() -> None:
    driver = Driver()
    driver.book("q")
    assert driver.first_token("q") == []
    driver.sequences.finish("q")
    assert driver.finished("q") == []

    assert driver.publish(Tick("flush"))[1:] == [Wake(0.005, Tick("flush"))]

    assert driver.batches()[1] == RecordBatch(7, 3, [Prefilled("r1#1"), Ended("r1#1")])
    assert driver.sync.statistics().events_sent == 4


def test_long_prompts_never_fill_a_message() -> None:
    driver = Driver(max_bytes=600)
    driver.route("a", list(range(1000)))
    driver.route("b", list(range(1000)))
    driver.route("c", list(range(1000)))
    driver.publish(StateWanted("r2"))

    sent = [
        [one.request_id for one in batch.events if isinstance(one, PlacedRecord)]
        for batch in driver.batches()
    ]
    assert sent == [["r1#1"], ["r1#2", "r1#3"], ["r1#1", "r1#2"], ["r1#3"]]


def test_each_second_a_replica_says_how_far_it_is() -> None:
    driver = Driver()
    assert driver.publish(Started()) == [Wake(1.0, Tick("beat")), Wake(1.2, Tick("format"))]
    driver.book("q")
    driver.publish(Tick("flush"))

    assert Wake(1.0, Tick("beat")) in driver.publish(Tick("beat"))

    assert driver.batches()[-1] == RecordBatch(7, 3, [], Shares(0, 0, [], beat=True))


def test_growth_is_told_once_a_second() -> None:
    driver = Driver()
    driver.book("q")
    driver.publish(Tick("flush"))
    driver.sequences.grow("q", 9, 0.0)
    driver.publish(Tick("beat"))
    driver.publish(Tick("beat"))

    assert [one.events for one in driver.batches()[1:]] == [[Grew("r1#1", 9)], [], []]


def test_a_peer_that_asks_gets_the_whole_state() -> None:
    driver = Driver()
    driver.book("q")
    driver.sequences.first_token("q", 0.0)
    driver.sequences.grow("q", 9, 0.0)

    driver.publish(BusMessage("kvmesh.rctl.code.r1", encode(StateWanted("r2"))))
    driver.publish(StateWanted("r3"))

    assert driver.batches()[1:] == [
        RecordBatch(7, 3, state(PLACED, Prefilled("r1#1"), Grew("r1#1", 9)))
    ]
    driver.now = 1.0
    assert driver.publish(StateWanted("r3"))
    assert driver.publish(StateWanted("r1")) == []


def test_what_must_have_come_unseen_is_still_expected_by_whom_is_told_now() -> None:
    driver = Driver()
    driver.sequences.add("q", W, Demand(40, 30, 20, streams=False), 0.0)
    driver.sequences.first_token("q", 0.0)
    driver.sequences.foresee(driver.sequences.bookings["q"], 3)

    driver.publish(StateWanted("r2"))

    expected = msgspec.structs.replace(PLACED, streams=False)
    assert driver.batches()[0].events == state(expected, Prefilled("r1#1"))


def test_a_joining_peer_is_asked_for_its_state_but_not_all_the_time() -> None:
    driver = Driver()
    beat = RouterHeartbeat("r2", "code", "", ready=True, epoch=1)
    joined = RouterSeen(beat, joined=True)

    assert driver.publish(RouterSeen(beat)) == []
    [asked] = of(Publish, driver.publish(joined))
    assert asked.subject == "kvmesh.rctl.code.r2"
    assert decode(asked.data, StateWanted) == StateWanted("r1")
    assert driver.publish(joined) == []
    driver.publish(RouterGone("r2"))
    assert driver.publish(joined)


def talk(driver: Driver, lost: int, router: str = "r2") -> list[Effect]:
    """Hear a peer's booking behind so many messages that were lost."""
    peer = Driver(router)
    for number in range(lost):
        peer.book(f"lost-{number}")
        peer.publish(Tick("flush"))
    peer.sequences.add("theirs", W, Demand(40, 30), 0.0)
    peer.placed("theirs")
    peer.publish(Tick("flush"))
    return driver.publish(BusMessage(peer.published[-1].subject, peer.published[-1].data))


def test_peers_bookings_are_applied_and_die_with_the_peer() -> None:
    driver = Driver()
    assert talk(driver, lost=0) == []
    assert [one.request_id for one in driver.sequences.owned("r2")] == ["r2#1"]

    driver.publish(RouterGone("r2"))

    assert driver.sequences.owned("r2") == []
    assert driver.sync.statistics().events_applied == 2


def test_a_lost_message_of_a_peer_makes_this_replica_ask_until_answered() -> None:
    driver = Driver()

    [asked] = of(Publish, talk(driver, lost=2))

    assert asked.subject == "kvmesh.rctl.code.r2"
    driver.now = 1.0
    subjects = [one.subject for one in of(Publish, driver.publish(Tick("beat")))]
    assert subjects == ["kvmesh.seq.code.r1", "kvmesh.rctl.code.r2"]
    assert driver.sync.statistics().states_asked == 2


def test_a_peer_whose_booking_expired_here_is_asked_for_its_state() -> None:
    driver = Driver()
    talk(driver, lost=0)
    known = driver.sync.peers.known_upto("r2")
    driver.now = 11.0

    effects = driver.publish(Tick("beat"))

    assert known == (7, 3)
    assert driver.sequences.owned("r2") == []
    assert driver.sync.peers.known_upto("r2") is None
    assert [one.subject for one in of(Publish, effects)][1:] == ["kvmesh.rctl.code.r2"]


def test_of_a_peer_never_heard_nothing_is_known_or_doubted() -> None:
    driver = Driver()
    driver.sequences.add("q", W, Demand(40, 30, 20), driver.now, owner="r9")
    driver.now = 11.0
    driver.publish(Tick("beat"))

    assert driver.sync.peers.known_upto("r9") is None
    assert driver.sync.statistics().states_asked == 0


def test_a_replica_does_not_listen_to_itself() -> None:
    driver = Driver()

    assert talk(driver, lost=0, router="r1") == []
    assert driver.sync.statistics().events_applied == 0


def test_garbage_is_counted_and_dropped() -> None:
    driver = Driver()

    [said] = driver.publish(BusMessage("kvmesh.seq.code.r2", b"\xc1"))
    assert isinstance(said, Log)
    assert driver.publish(BusMessage("kvmesh.rctl.code.r1", b"\xc1")) == []
    assert driver.sync.statistics().garbage == 2


def test_messages_of_no_concern_are_ignored() -> None:
    assert Driver().publish(Message()) == []


def test_what_an_attempt_showed_is_told_with_its_end() -> None:
    driver = Driver()
    driver.book("q")
    driver.publish(Tick("flush"))
    driver.publish(Tick("flush"))

    driver.book("s")
    driver.finished("q", status_attempt(429, 0.5, 4.0))
    driver.finished("s")
    driver.publish(Tick("flush"))

    ended = [event for batch in driver.batches() for event in batch.events][3:]
    assert ended == [Ended("r1#1", Verdict.OVERLOAD, "429", 0.5, 4.0), Ended("r1#2")]


def test_service_of_tenants_goes_along_with_bookings_and_alone_when_who_waits_changes() -> None:
    driver = Driver()
    ledger = driver.scheduler.ledger
    ledger.charge(ledger.begin_waiting("a"), 7)

    assert driver.publish(SharesChanged())[1:] == [Wake(0.005, Tick("flush"))]
    assert driver.publish(SharesChanged()) == []
    ledger.begin_waiting("b")
    driver.publish(Tick("flush"))

    first, second = (one.shares for one in driver.batches())
    assert first is not None
    assert second is not None
    assert first.rows == [ShareRow(key_of("a"), 1, 7, 0, 1)]
    assert second.rows == [ShareRow(key_of("b"), 2, 0, 0, 1)]
    assert [one.events for one in driver.batches()] == [[], []]


def test_service_told_by_a_peer_is_charged() -> None:
    one, other = Driver("r1"), Driver("r2")
    mine, theirs = one.scheduler.ledger, other.scheduler.ledger
    theirs.begin_waiting("a")
    one.publish(Tick("beat"))
    other.publish(BusMessage("kvmesh.seq.code.r1", one.published[-1].data))

    mine.charge(mine.begin_waiting("a"), 30)
    one.publish(SharesChanged())
    other.publish(BusMessage("kvmesh.seq.code.r1", one.published[-1].data))

    assert theirs.left(key_of("a")) == mine.left(key_of("a"))
    other.publish(RouterGone("r1"))
    assert theirs.left(key_of("a")) == mine.left(key_of("a"))
