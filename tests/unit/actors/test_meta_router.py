import pytest

from kvmesh.actors.kernel import Effect, Log, Wake
from kvmesh.actors.member_messages import Answered
from kvmesh.actors.messages import AllReported, BusMessage, Drain, RouterHeartbeat, Started, Tick
from kvmesh.actors.meta_router import MOST_EARLY, MetaRouter
from kvmesh.actors.wire import encode
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.members.outcomes import failed_attempt
from kvmesh.core.members.silent_members import GIVEN_UP
from kvmesh.errors import NoWorkerError, RequestError


def beat(
    bucket: str,
    router: str,
    *,
    epoch: int = 1,
    ready: bool = True,
    subject: str = "",
    follower: bool = False,
    picker: bool = False,
) -> BusMessage:
    heartbeat = RouterHeartbeat(
        router=router,
        bucket=bucket,
        url=f"http://{router}",
        ready=ready,
        epoch=epoch,
        models=("m",),
        follower=follower,
        picker=picker,
    )
    return BusMessage(subject or f"kvmesh.rt.{bucket}.{router}", encode(heartbeat))


def logs(effects: list[Effect]) -> list[Log]:
    return [effect for effect in effects if isinstance(effect, Log)]


def test_a_replica_that_failed_is_left_out_and_trusted_again_once_it_answers() -> None:
    meta = MetaRouter("kvmesh")
    meta.receive(beat("a", "r0"), 0.0)
    meta.receive(beat("a", "r1"), 0.0)

    meta.note("a/r0", failed_attempt("reset"), 0.1)

    assert {meta.table.route(BucketRequest(), 0.2).replica.name for _ in range(4)} == {"a/r1"}

    meta.began("a/r0", 0.3)

    assert len({meta.table.route(BucketRequest(), 0.3).replica.name for _ in range(4)}) == 2


def test_a_replica_whose_heartbeats_stop_is_gone() -> None:
    meta = MetaRouter("kvmesh")
    started = list(meta.receive(Started(), 0.0))
    meta.receive(beat("a", "r0"), 0.0)
    assert meta.ready(1.0)
    for quarter in range(1, 15):
        meta.receive(Tick("check"), quarter / 4 - 0.25)
        meta.receive(beat("b", "r1"), quarter / 4)

    effects = list(meta.receive(Tick("check"), 3.75))

    assert isinstance(started[-1], Wake)
    assert [log.level for log in logs(effects)] == ["warning"]
    assert [row.member for row in meta.replicas(4.0)] == ["b/r1"]
    with pytest.raises(NoWorkerError):
        meta.table.route(BucketRequest(bucket="a"), 4.0)


def pass_time(meta: MetaRouter, begin_s: float, end_s: float) -> list[Log]:
    """Let time pass in checks; return what was logged."""
    found: list[Log] = []
    for quarter in range(int(begin_s * 4), int(end_s * 4) + 1):
        found += logs(list(meta.receive(Tick("check"), quarter / 4)))
    return found


def test_a_silent_replica_is_asked_and_stays_while_it_is_ready() -> None:
    meta = MetaRouter("kvmesh")
    meta.link_health.set_asked()
    meta.receive(beat("a", "r0", ready=False), 0.0)
    pass_time(meta, 0.0, 2.25)
    assert not meta.ready(2.25)

    [(name, last)] = meta.silent.due(2.25)
    for second in range(2, 30):
        assert list(meta.receive(Answered(name, "ok"), second + 0.5)) == []
        assert pass_time(meta, second + 0.5, second + 1.25) == []

    assert (name, last.url) == ("a/r0", "http://r0")
    assert meta.ready(30.0)


def test_a_replica_that_only_answers_among_others_that_are_heard_is_told_of_once() -> None:
    meta = MetaRouter("kvmesh")
    meta.link_health.set_asked()
    meta.receive(beat("a", "r0"), 0.0)
    found: list[Log] = []
    for second in range(10):
        meta.receive(beat("a", "r1"), second)
        meta.receive(Answered("a/r0", "ok"), second)
        found += pass_time(meta, second, second + 0.75)

    assert [(log.fields["member"], log.fields["change"]) for log in found] == [("a/r0", "silent")]
    [warning] = meta.link_health.warnings()
    assert warning.startswith("1 of 2 members")
    assert {meta.table.route(BucketRequest(), 10.0).replica.name for _ in range(4)} == {
        "a/r0",
        "a/r1",
    }


def test_a_silent_replica_that_refuses_is_gone_and_back_when_it_is_ready() -> None:
    meta = MetaRouter("kvmesh")
    meta.link_health.set_asked()
    meta.receive(beat("a", "r0"), 0.0)
    pass_time(meta, 0.0, 2.25)
    meta.receive(Answered("a/r0", "down"), 2.25)

    [log] = logs(list(meta.receive(Answered("a/r0", "down"), 2.5)))

    assert log.fields["change"] == "left"
    assert meta.table.models() == ()
    [(name, _)] = meta.silent.due(3.5)
    [log] = logs(list(meta.receive(Answered(name, "ok"), 3.6)))
    assert log.fields["change"] == "joined"
    assert meta.table.route(BucketRequest(), 3.6).replica.url == "http://r0"
    meta.receive(beat("a", "r0"), 4.0)
    assert meta.link_health.warnings() == ()


def test_garbage_and_impostors_are_dropped_and_counted() -> None:
    meta = MetaRouter("kvmesh")

    meta.receive(BusMessage("kvmesh.rt.a.r0", b"\xc1"), 0.0)
    meta.receive(beat("a", "r0", subject="kvmesh.rt.a.r1"), 0.0)
    meta.receive(beat("a", "r0", subject="kvmesh.rt.b.r0"), 0.0)

    assert meta.statistics().garbage == 3
    assert meta.statistics().replicas == 0


@pytest.mark.parametrize("picker", [False, True])
def test_a_follower_that_takes_no_requests_is_no_replica(*, picker: bool) -> None:
    meta = MetaRouter("kvmesh")

    assert not [*meta.receive(beat("a", "mine", follower=True, picker=picker), 0.0)]

    assert (meta.replicas(0.1), meta.table.models(), meta.statistics().heartbeats) == ([], (), 1)
    with pytest.raises(NoWorkerError):
        meta.table.route(BucketRequest(), 0.1)


def test_a_heartbeat_of_an_older_incarnation_changes_nothing() -> None:
    meta = MetaRouter("kvmesh")
    meta.receive(beat("a", "r0", epoch=2), 0.0)

    effects = list(meta.receive(beat("a", "r0", epoch=1, ready=False), 0.1))

    assert effects == []
    assert meta.ready(0.2)


def test_a_static_replica_needs_no_heartbeat() -> None:
    meta = MetaRouter("kvmesh")

    meta.add_static("a", "http://r0", 0.0)

    assert meta.table.route(BucketRequest(), 1e6).replica.url == "http://r0"
    assert list(meta.receive(Drain(), 0.0)) == []


def test_what_may_only_not_be_heard_of_yet_is_no_404() -> None:
    meta = MetaRouter("kvmesh")
    meta.listening = True
    meta.receive(beat("a", "r0"), 0.0)
    meta.receive(AllReported(), 1.0)
    for strange in (BucketRequest(bucket="b"), BucketRequest(model="other")):
        with pytest.raises(NoWorkerError):
            meta.table.route(strange, 1.0)

    meta.receive(Tick("check"), 4.0)
    with pytest.raises(NoWorkerError):
        meta.table.route(BucketRequest(bucket="b"), 4.0)
    meta.receive(beat("a", "r0"), 4.5)
    meta.receive(Tick("check"), 4.5)

    for strange in (BucketRequest(bucket="b"), BucketRequest(model="other")):
        with pytest.raises(RequestError):
            meta.table.route(strange, 4.5)
    assert meta.table.route(BucketRequest(bucket="a"), 4.5).bucket == "a"


def test_it_is_ready_when_a_static_replica_has_answered() -> None:
    meta = MetaRouter("kvmesh")
    first, second = (meta.add_static("a", f"http://r{number}", 0.0) for number in (0, 1))
    assert not meta.ready(0.0)
    assert meta.unheard == {first, second}

    meta.answered(second)
    assert meta.ready(0.0)
    assert meta.unheard == {first}

    meta.began(first, 0.0)
    assert meta.unheard == frozenset()


def test_what_a_static_replica_serves_may_be_learned() -> None:
    meta = MetaRouter("kvmesh")
    small = meta.add_static("one", "http://a", 0.0)
    meta.add_static("two", "http://b", 0.0)

    meta.serves(small, ("small",))
    meta.serves("two/http://b", ("large",))
    meta.serves("nobody", ("none",))

    assert meta.table.models() == ("large", "small")
    buckets = {meta.table.route(BucketRequest(model="small"), 0.0).bucket for _ in range(4)}
    assert buckets == {"one"}


def test_a_replica_that_names_a_place_of_no_router_is_refused_and_said_once() -> None:
    meta = MetaRouter("kvmesh")
    evil = RouterHeartbeat(
        router="r0", bucket="a", url="http://u:p@10.0.0.1", ready=True, epoch=1, models=("m",)
    )
    message = BusMessage("kvmesh.rt.a.r0", encode(evil))

    first, second = (list(meta.receive(message, now)) for now in (0.0, 1.0))

    assert [log.event for log in logs(first)] == ["replica refused"]
    assert second == []
    assert not meta.ready(1.0)
    assert meta.statistics().refused == 2


def test_where_a_replica_is_asked() -> None:
    meta = MetaRouter("kvmesh")
    meta.receive(beat("a", "r0"), 0.0)

    assert meta.url("a/r0") == "http://r0"
    assert meta.url("a/r1") == ""


def test_workers_that_routers_leave_out_are_told_once_a_bucket() -> None:
    meta = MetaRouter("kvmesh")
    for router in ("r0", "r1"):
        heartbeat = RouterHeartbeat(
            router=router, bucket="a", url="http://r", ready=True, epoch=1, left_out=("w1", "w0")
        )
        meta.receive(BusMessage(f"kvmesh.rt.a.{router}", encode(heartbeat)), 0.0)

    assert meta.left_out() == [("w0", "a"), ("w1", "a")]


def test_while_it_listens_nobody_gets_a_request_and_then_the_newest_heartbeats_count() -> None:
    meta = MetaRouter("kvmesh")
    meta.listening = True
    meta.receive(beat("a", "r0", ready=False), 0.0)
    meta.receive(beat("a", "r0"), 0.1)
    meta.receive(beat("b", "r1"), 0.2)

    assert not meta.ready(0.3)
    with pytest.raises(NoWorkerError):
        meta.table.route(BucketRequest(), 0.3)

    effects = list(meta.receive(AllReported(), 1.0))

    assert len(logs(effects)) == 2
    assert meta.ready(1.0)
    assert {meta.table.route(BucketRequest(), 1.0).bucket for _ in range(2)} == {"a", "b"}


def test_only_so_many_replicas_are_kept_while_it_listens() -> None:
    meta = MetaRouter("kvmesh")
    meta.listening = True
    for number in range(MOST_EARLY + 10):
        meta.receive(beat("a", f"r{number}"), 0.0)
    meta.receive(beat("a", "r0", epoch=2), 0.0)

    meta.receive(AllReported(), 0.1)

    assert meta.statistics().replicas == MOST_EARLY
    assert meta.table.membership.epoch("a/r0") == 2


def test_requests_wait_for_replicas_that_may_only_not_be_heard_of_yet() -> None:
    meta = MetaRouter("kvmesh")
    assert not meta.awaits_replicas(), "from the configuration, and there are none"

    meta.listening = True
    assert meta.awaits_replicas()
    meta.receive(AllReported(), 1.0)
    meta.link_health.set_connected(up=False)
    meta.receive(Tick("check"), 4.5)
    assert meta.awaits_replicas(), "nobody could be heard"
    meta.link_health.set_connected(up=True)
    meta.receive(Tick("check"), 8.0)
    assert not meta.awaits_replicas()

    meta.receive(beat("a", "r0"), 8.0)
    assert meta.awaits_replicas()


def test_a_replica_that_was_lost_is_named() -> None:
    meta = MetaRouter("kvmesh")
    meta.link_health.set_asked()
    meta.receive(beat("a", "r0"), 0.0)
    for now in (2.2, 2.5):
        meta.receive(Answered("a/r0", "down"), now)

    assert meta.given_up(2.5) == [("a/r0", GIVEN_UP)]
    meta.receive(beat("a", "r0"), 3.0)
    assert meta.given_up(3.0) == []


def test_an_answer_that_is_served_is_noted_of_a_replica_that_failed() -> None:
    meta = MetaRouter("kvmesh")
    for name in ("r0", "r1", "r2", "r3"):
        meta.receive(beat("a", name), 0.0)
    for _ in range(5):
        meta.note("a/r0", failed_attempt("cut"), 0.0)
    others = ("a/r1", "a/r2", "a/r3")
    assert tuple(meta.table.membership.usable(0.1)) == others

    for tenth in range(1, 10):
        meta.served("a/r0", tenth / 10)

    assert tuple(meta.table.membership.usable(1.0)) == ("a/r0", *others)
