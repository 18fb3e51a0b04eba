import msgspec

from kvmesh.actors.engine_messages import EngineSilent
from kvmesh.actors.kernel import Log, Message, Send, Wake
from kvmesh.actors.messages import (
    Started,
    Tick,
    TrustChanged,
    WorkerGone,
    WorkerHeartbeat,
    WorkerLoad,
    WorkerSeen,
)
from kvmesh.actors.static_registry import CHECK_S, DOWN, StaticRegistry
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import LoadReport, Trust
from kvmesh.core.routing.registry import WorkerRegistry
from tests.unit.actors.effects import of, sent

W = WorkerId("w")
BEAT = WorkerHeartbeat(W, "b", 1, 0, "http://w", ("m",), 16, WorkerLoad(1, 2, 3, 100))


class Driver:
    def __init__(self, index: KvIndex | None = None) -> None:
        self.workers = WorkerRegistry(Membership(), new_sequences(block_size=16))
        self.registry = StaticRegistry(self.workers, index, router="router")

    def panics(self) -> bool:
        return self.workers.panic

    def trust(self) -> Trust:
        return self.workers.info(W).trust


def test_an_engine_that_answers_is_a_worker_and_its_load_is_known() -> None:
    driver = Driver()

    first = list(driver.registry.receive(BEAT, 0.0))
    again = list(driver.registry.receive(BEAT, 1.0))

    assert sent(first, "router") == sent(again, "router") == [WorkerSeen(BEAT)]
    assert (len(of(Log, first)), len(of(Log, again))) == (1, 0)
    assert driver.workers.everyone(1.0) == (W,)
    assert driver.workers.state(W).report == LoadReport(1, 2, 3, 100)
    assert driver.registry.answering == {W}


def test_an_engine_that_says_nothing_of_its_load_is_not_taken_for_idle() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)

    driver.registry.receive(msgspec.structs.replace(BEAT, load=WorkerLoad()), 1.0)

    assert driver.workers.state(W).report == LoadReport(1, 2, 3, 100)


def test_a_worker_that_was_dropped_is_not_brought_back_by_the_clock() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)

    driver.workers.membership.remove(W)
    driver.registry.receive(Tick("check"), 1.0)

    assert driver.workers.everyone(1.0) == ()


def test_a_silent_engine_gets_nothing_and_is_told_of_once() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)

    lines = of(Log, driver.registry.receive(EngineSilent(W), 1.0))
    more = list(driver.registry.receive(EngineSilent(W), 2.0))

    assert [line.level for line in lines] == ["warning"]
    assert more == []
    assert driver.workers.everyone(2.0) == ()
    assert driver.registry.answering == set()


def test_an_engine_that_never_answered_is_known_by_its_configuration() -> None:
    driver = Driver()
    silent = EngineSilent(W, beat=BEAT)

    first = of(Send, driver.registry.receive(silent, 0.0))
    again = list(driver.registry.receive(silent, 1.0))

    assert first == [Send("router", WorkerSeen(BEAT))]
    assert again == []
    assert driver.workers.membership.why_not(W, 1.0) == DOWN
    assert not driver.workers.met_any


def test_an_engine_that_is_up_and_names_no_models_is_not_called_down() -> None:
    driver = Driver()

    lines = of(Log, driver.registry.receive(EngineSilent(W, status=401, beat=BEAT), 0.0))

    why = "its engine answers /v1/models with 401, not with its models"
    assert lines[0].fields["reason"] == why
    assert driver.workers.membership.why_not(W, 1.0) == why


def test_trust_follows_the_events_and_says_why() -> None:
    driver = Driver()

    driver.registry.receive(BEAT, 0.0)
    before = driver.trust(), driver.registry.reasons[W]
    driver.registry.receive(TrustChanged(W, Trust.EXACT), 0.0)
    exact = driver.trust(), dict(driver.registry.reasons)
    driver.registry.receive(TrustChanged(W, Trust.APPROX, "gone"), 0.0)
    driver.registry.receive(BEAT, 1.0)

    assert before == (Trust.CATCHING_UP, "its KV events are being read")
    assert exact == (Trust.EXACT, {})
    assert (driver.trust(), driver.registry.reasons[W]) == (Trust.APPROX, "gone")


def test_a_worker_without_events_is_approximate() -> None:
    driver = Driver()

    driver.registry.receive(msgspec.structs.replace(BEAT, events=False), 0.0)

    assert driver.trust() is Trust.APPROX
    assert "no KV events" in driver.registry.reasons[W]


def test_a_worker_that_is_no_more_leaves_no_trace() -> None:
    index = KvIndex()
    index.store(W, 0, pack_hashes([1, 2]))
    driver = Driver(index)
    driver.registry.receive(BEAT, 0.0)

    effects = list(driver.registry.receive(WorkerGone(W), 1.0))
    list(Driver().registry.receive(WorkerGone(W), 1.0))

    assert sent(effects, "router") == [WorkerGone(W)]
    assert index.blocks(W) == 0
    assert driver.workers.everyone(1.0) == ()
    assert (driver.registry.answering, driver.registry.reasons) == (set(), {})


def test_the_index_is_cleaned_in_slices_as_long_as_there_is_something() -> None:
    index = KvIndex()
    for start in range(1, 40_000, 1000):
        index.store(W, 0, pack_hashes(list(range(start * 64, start * 64 + 1000))))
    index.remove_worker(W)
    registry = StaticRegistry(
        WorkerRegistry(Membership(), new_sequences(block_size=16)), index, router="r"
    )

    waits = [_wait(registry, Started())]
    while waits[-1] == 0.0:
        waits.append(_wait(registry, Tick("check")))

    assert len(waits) > 2
    assert waits[-1] == CHECK_S
    assert _wait(Driver().registry, Started()) == CHECK_S


def _wait(registry: StaticRegistry, message: Message) -> float:
    (wake,) = of(Wake, registry.receive(message, 0.0))
    return wake.after_s


def test_messages_of_no_concern_are_ignored() -> None:
    assert list(Driver().registry.receive(Message(), 0.0)) == []


def test_when_nobody_answers_in_time_those_who_did_get_requests_all_the_same() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)
    other = WorkerId("v")
    driver.registry.receive(msgspec.structs.replace(BEAT, worker=other), 0.0)

    first = list(driver.registry.receive(EngineSilent(W, slow=True), 1.0))
    assert driver.workers.everyone(1.0) == (other,)
    second = list(driver.registry.receive(EngineSilent(other, slow=True), 2.0))

    assert [log.level for log in of(Log, first)] == ["warning"]
    assert [log.level for log in of(Log, second)] == ["warning", "error"]
    assert driver.panics()
    for second_s in range(3, 20):
        driver.registry.receive(Tick("check"), float(second_s))
    assert driver.workers.everyone(20.0) == (other, W)

    over = list(driver.registry.receive(BEAT, 20.0))

    assert [log.event for log in of(Log, over)][-1] == "panic is over"
    assert not driver.panics()
    assert driver.workers.everyone(20.0) == (W,)


def test_an_engine_that_refuses_or_never_answered_gets_nothing_in_panic() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)
    stranger = WorkerId("stranger")

    driver.registry.receive(EngineSilent(stranger, slow=True), 1.0)
    driver.registry.receive(EngineSilent(W), 1.0)

    assert not driver.panics()
    assert driver.workers.everyone(1.0) == ()


def test_a_slow_engine_that_begins_to_refuse_or_leaves_ends_the_panic() -> None:
    driver = Driver()
    driver.registry.receive(BEAT, 0.0)
    driver.registry.receive(EngineSilent(W, slow=True), 1.0)
    assert driver.panics()

    driver.registry.receive(EngineSilent(W), 2.0)
    assert not driver.panics()
    assert driver.workers.everyone(2.0) == ()

    driver.registry.receive(BEAT, 3.0)
    driver.registry.receive(EngineSilent(W, slow=True), 4.0)
    driver.registry.receive(WorkerGone(W), 5.0)
    assert not driver.panics()
