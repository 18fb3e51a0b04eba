import msgspec
import pytest

from kvmesh.actors.kernel import Effect, Log, Message, Publish, Wake
from kvmesh.actors.load_readings import STALE_BEATS
from kvmesh.actors.member_messages import Answered
from kvmesh.actors.messages import (
    BusMessage,
    Resync,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    Started,
    Tick,
    TrustChanged,
    WorkerHeartbeat,
    WorkerLoad,
    WorkerSeen,
)
from kvmesh.actors.registry import ENGINE_HANGS, Registry, RegistryOptions
from kvmesh.actors.wire import decode, encode
from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.silent_members import GIVEN_UP
from kvmesh.core.members.worker_info import LoadReport, Trust
from kvmesh.core.routing.registry import WorkerRegistry
from tests.unit.actors.effects import of, sent

A = WorkerId("a")
LOAD = WorkerLoad(2, 1, 50, 100)


def worker(epoch: int = 1, **changes: object) -> WorkerHeartbeat:
    beat = WorkerHeartbeat(A, "code", epoch, 0, "http://a", ("m",), 16, LOAD)
    return msgspec.structs.replace(beat, **changes)


def router(name: str = "r2", epoch: int = 1) -> RouterHeartbeat:
    return RouterHeartbeat(name, "code", f"http://{name}", ready=True, epoch=epoch)


class Driver:
    def __init__(
        self, *, speaks: bool = True, kv_events: bool = True, secret_mark: int | None = None
    ) -> None:
        self.workers = WorkerRegistry(Membership(), new_sequences(16))
        self.routers = Membership()
        self.registry = Registry(
            RegistryOptions(
                *("r1", "code"),
                workers_to=("indexer",),
                routers_to=("sync",),
                kv_events=kv_events,
                secret_mark=secret_mark,
            ),
            self.workers,
            self.routers,
            status=(lambda: router("r1")) if speaks else None,
        )
        self.now = 0.0

    def publish(self, message: Message) -> list[Effect]:
        return list(self.registry.receive(message, self.now))

    def usable(self) -> tuple[str, ...]:
        return self.workers.membership.usable(self.now)


def test_a_heartbeat_makes_a_worker_usable_and_is_passed_on() -> None:
    driver = Driver()

    effects = driver.publish(worker())

    assert sent(effects, "indexer") == [WorkerSeen(worker(), joined=True)]
    assert [log.fields["change"] for log in of(Log, effects)] == ["joined"]
    assert driver.usable() == (A,)
    assert driver.registry.heartbeat(A) == worker()
    assert driver.workers.info(A).models == ("m",)
    assert driver.workers.state(A).report == LoadReport(2, 1, 50, 100)


def test_a_low_epoch_of_a_new_incarnation_is_raised_by_those_who_know_it() -> None:
    driver = Driver()
    driver.publish(worker(epoch=9, incarnation=7))

    effects = driver.publish(worker(epoch=2, incarnation=8))

    (asked,) = of(Publish, effects)
    assert asked.subject == "kvmesh.ctl.code.a"
    assert decode(asked.data, Resync) == Resync(A, 9, 0, "r1", incarnation=8)
    assert driver.registry.heartbeat(A) == worker(epoch=9, incarnation=7)


def test_who_only_listens_asks_nobody_for_another_epoch() -> None:
    driver = Driver(speaks=False)
    driver.publish(worker(epoch=9, incarnation=7))

    assert driver.publish(worker(epoch=2, incarnation=8)) == []


def test_a_worker_that_is_silent_is_heard_again_under_an_older_epoch() -> None:
    driver = Driver()
    driver.registry.link_health.set_asked()
    driver.publish(worker(epoch=9))
    driver.now = 4.0
    driver.publish(Answered("worker/a", "ok"))
    driver.publish(Tick("check"))
    assert driver.workers.info(A).trust is Trust.APPROX

    effects = driver.publish(worker(epoch=2))

    assert sent(effects, "indexer") == [WorkerSeen(worker(epoch=2), restarted=True)]
    assert driver.workers.info(A).trust is Trust.EXACT


def test_a_worker_whose_engine_hangs_is_not_called_draining() -> None:
    driver = Driver()
    driver.publish(worker())
    driver.publish(worker(draining=True, answering=False))

    members = driver.workers.membership
    assert driver.usable() == ()
    assert members.why_not(A, driver.now) == ENGINE_HANGS

    driver.publish(worker(draining=True))
    assert driver.usable() == ()
    assert members.why_not(A, driver.now) == "draining"
    driver.publish(worker())
    assert driver.usable() == (A,)


def asked() -> Driver:
    """Return a driver of which somebody asks the silent, with a worker and a sibling."""
    driver = Driver()
    driver.registry.link_health.set_asked()
    driver.publish(worker())
    driver.publish(router())
    return driver


def pass_time(driver: Driver, until_s: float, *, hears_itself: bool = True) -> list[Effect]:
    """Let time pass in checks, return the effects but the wakes."""
    effects: list[Effect] = []
    while driver.now < until_s:
        driver.now += 0.25
        if hears_itself:
            driver.publish(router("r1"))
        effects += driver.publish(Tick("check"))
    return [one for one in effects if not isinstance(one, Wake)]


def test_the_silent_are_asked_and_stay_while_they_answer() -> None:
    driver = asked()
    pass_time(driver, 2.25)
    assert driver.registry.silent_workers.due(driver.now) == [(A, worker())]
    assert driver.registry.silent_routers.due(driver.now) == [("r2", router())]

    effects: list[Effect] = []
    for second in range(3, 60):
        for member in ("worker/a", "router/r2"):
            effects += driver.publish(Answered(member, "ok"))
        effects += pass_time(driver, second)

    assert [(log.event, log.fields["change"]) for log in of(Log, effects)] == [
        ("worker changed", "silent"),
        ("router changed", "silent"),
    ]
    assert len(effects) == 2
    assert driver.usable() == (A,)
    assert driver.routers.members() == ("r2",)


def test_a_worker_that_only_answers_is_known_approximately_until_it_is_heard() -> None:
    driver = asked()
    driver.publish(TrustChanged(A, Trust.DEGRADED))
    driver.publish(Answered("worker/a", "ok"))
    pass_time(driver, 2.5)
    driver.publish(Answered("worker/a", "ok"))
    assert driver.workers.info(A).trust is Trust.DEGRADED

    pass_time(driver, 3.75)

    assert driver.workers.info(A).trust is Trust.APPROX
    assert driver.workers.info(A).models == ("m",)
    assert driver.workers.state(A).report == LoadReport(total_blocks=100)
    driver.publish(TrustChanged(A, Trust.EXACT))
    assert driver.workers.info(A).trust is Trust.APPROX
    [log] = of(Log, driver.publish(worker()))
    assert log.fields["change"] == "heard"
    assert driver.workers.info(A).trust is Trust.EXACT
    assert driver.workers.state(A).report == LoadReport(2, 1, 50, 100)


def test_who_is_back_behind_a_partition_joins_again_unheard() -> None:
    driver = asked()
    pass_time(driver, 5.0)
    assert driver.usable() == driver.routers.members() == ()

    worker_back = driver.publish(Answered("worker/a", "ok"))
    router_back = driver.publish(Answered("router/r2", "ok"))

    assert sent(worker_back, "indexer") == [WorkerSeen(worker(), joined=True)]
    assert sent(router_back, "sync") == [RouterSeen(router(), joined=True)]
    assert driver.usable() == (A,)
    assert driver.workers.info(A).trust is Trust.APPROX
    assert driver.registry.link_health.warnings() != ()
    driver.publish(worker())
    driver.publish(router())
    assert driver.workers.info(A).trust is Trust.EXACT
    assert driver.registry.link_health.warnings() == ()


def test_of_who_hashes_by_another_secret_only_what_was_sent_there_counts() -> None:
    driver = Driver(secret_mark=7)

    driver.publish(worker(secret_mark=8))
    assert driver.workers.distrusted == {A}
    driver.publish(worker(secret_mark=7))
    assert driver.workers.distrusted == set()
    driver.publish(worker())
    assert driver.workers.info(A).trust is Trust.APPROX


def test_trust_in_a_worker_that_is_not_there_is_not_kept() -> None:
    driver = Driver()
    driver.publish(TrustChanged(A, Trust.DEGRADED))
    driver.publish(worker())

    assert driver.workers.info(A).trust is Trust.EXACT
    assert driver.workers.distrusted == set()


def test_other_replicas_come_and_go() -> None:
    driver = Driver()
    effects = driver.publish(router())
    assert sent(effects, "sync") == [RouterSeen(router(), joined=True)]
    assert driver.registry.replica("r2") == router()
    driver.publish(router(epoch=4))
    assert driver.publish(router(epoch=3)) == []
    driver.now = 4.0
    driver.publish(worker())

    assert sent(driver.publish(Tick("check")), "sync") == [RouterGone("r2")]
    assert driver.registry.replica("r2") is None


def test_another_router_of_the_same_name_is_said_once() -> None:
    driver = Driver()

    [log] = of(Log, driver.publish(router("r1", epoch=7)))

    assert (log.level, log.event) == ("error", "another router has this name")
    assert "--router-id" in str(log.fields["remedy"])
    assert driver.publish(router("r1", epoch=7)) == []
    assert driver.publish(router("r1")) == []
    assert len(driver.publish(router("r1", epoch=8))) == 1
    assert driver.routers.members() == ()
    assert Driver(speaks=False).publish(router("r1", epoch=7)) == []


def test_heartbeats_come_by_the_bus() -> None:
    driver = Driver()

    driver.publish(BusMessage("kvmesh.hb.code.a", encode(worker())))
    driver.publish(BusMessage("kvmesh.rt.code.r2", encode(router())))

    counted = driver.registry.statistics()
    assert (counted.worker_heartbeats, counted.router_heartbeats, counted.garbage) == (1, 1, 0)


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        ("kvmesh.hb.code.a", b"\xc1"),
        ("kvmesh.hb.code.a", encode(router())),
        ("kvmesh.hb.code.b", encode(worker())),
        ("kvmesh.rt.code.r3", encode(router())),
        ("kvmesh.seq.code.r2", encode(router())),
    ],
)
def test_garbage_and_borrowed_names_are_counted_and_dropped(subject: str, data: bytes) -> None:
    driver = Driver()

    [said] = driver.publish(BusMessage(subject, data))
    assert isinstance(said, Log)
    assert said.fields["from"] == repr(subject)
    assert driver.registry.statistics().garbage == 1


def test_a_replica_tells_that_it_lives_each_second() -> None:
    driver = Driver()

    for effects in (driver.publish(Started()), driver.publish(Tick("heartbeat"))):
        [publish] = of(Publish, effects)
        assert publish.subject == "kvmesh.rt.code.r1"
        assert decode(publish.data, RouterHeartbeat) == router("r1")
        assert Wake(1.0, Tick("heartbeat")) in effects


def test_a_listener_says_nothing() -> None:
    assert Driver(speaks=False).publish(Started()) == [Wake(0.25, Tick("check"))]


def test_messages_of_no_concern_are_ignored() -> None:
    assert Driver().publish(Message()) == []


def test_a_worker_that_names_a_place_of_no_engine_is_refused_and_said_once() -> None:
    driver = Driver()
    evil = worker(url="http://169.254.169.254/latest/meta-data")

    first, second = driver.publish(evil), driver.publish(evil)

    assert [log.level for log in of(Log, first)] == ["error"]
    assert "169.254.169.254" in str(of(Log, first)[0].fields["reason"])
    assert sent(first, "indexer") == []
    assert second == []
    assert driver.usable() == ()
    assert driver.registry.statistics().refused == 2
    assert list(driver.workers.guard.refused(driver.now)) == [A]


def test_a_worker_that_turns_to_such_a_place_keeps_its_url_until_it_is_gone() -> None:
    driver = Driver()
    driver.publish(worker())
    driver.now = 1.0

    driver.publish(worker(url="http://[fe80::1]"))

    beat = driver.registry.heartbeat(A)
    assert beat is not None
    assert beat.url == "http://a"
    driver.now = 5.0
    driver.publish(router("r1"))
    driver.publish(Tick("check"))
    assert driver.registry.heartbeat(A) is None


def test_a_reading_of_the_load_counts_once_however_often_it_is_told() -> None:
    driver = Driver()
    driver.publish(worker(reading=1))
    for _ in range(STALE_BEATS - 1):
        driver.publish(worker(reading=1))
    assert driver.workers.state(A).loads.unseen_requests == 0
    assert driver.workers.state(A).report.used_blocks == 50

    driver.publish(worker(reading=2))
    driver.publish(worker(reading=3))
    assert driver.workers.state(A).loads.unseen_requests == 3


def test_load_that_an_engine_no_longer_tells_is_forgotten() -> None:
    driver = Driver()
    for reading in (1, 2, 3):
        driver.publish(worker(reading=reading))
    assert driver.workers.state(A).loads.unseen_requests == 3

    for _ in range(STALE_BEATS):
        driver.publish(worker(reading=3))

    assert driver.workers.state(A).loads.unseen_requests == 0
    assert driver.workers.state(A).report == LoadReport(total_blocks=100)
    assert driver.workers.capacity_blocks(A) == 100
    driver.publish(worker(epoch=2, reading=3))
    assert driver.workers.state(A).report.used_blocks == 50


def test_a_sidecar_that_does_not_count_its_readings_is_believed_each_time() -> None:
    driver = Driver()

    for _ in range(3):
        driver.publish(worker())

    assert driver.workers.state(A).loads.unseen_requests == 3


def test_the_last_epoch_of_all_is_not_asked_to_be_gone_above() -> None:
    driver = Driver()
    driver.publish(worker(epoch=MAX_ORDINAL, incarnation=7))

    assert of(Publish, driver.publish(worker(epoch=2, incarnation=8))) == []


def test_workers_are_awaited_until_all_that_are_there_had_time_to_be_heard() -> None:
    driver = Driver()
    driver.publish(Started())
    seen: list[bool] = []

    for now in (0.25, 3.25, 3.5):
        driver.now = now
        driver.publish(Tick("check"))
        seen.append(driver.workers.settled)

    assert seen == [False, False, True]


def test_members_that_were_lost_are_named() -> None:
    driver = Driver()
    driver.registry.link_health.set_asked()
    driver.publish(worker())
    driver.publish(router())
    driver.now = 10.0
    driver.publish(Tick("check"))  # it stood still
    driver.now = 10.25
    for member in ("worker/a", "router/r2"):
        for _ in range(2):
            driver.publish(Answered(member, "down"))

    assert driver.registry.given_up(10.25) == [("a", GIVEN_UP), ("r2", GIVEN_UP)]
