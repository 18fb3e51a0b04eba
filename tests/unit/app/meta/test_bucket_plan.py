import time

import pytest

from kvmesh.actors.messages import BusMessage, RouterHeartbeat
from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.wire import encode
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.transport.http.forward.plan import Outcome, Target
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from tests.unit.app.members.test_open_streams import Flowing
from tests.unit.transport.http.forward.told_events import Asked

CUT = UpstreamFailure("mid_response", "truncated", "r: closed", "http://r0")
GOING = Going(Asked(), None, 3)


class Front:
    """A meta-router of two replicas, and a request at one of them."""

    def __init__(self) -> None:
        self.meta = MetaRouter("kvmesh")
        now = time.monotonic()
        for name in ("r0", "r1"):
            beat = RouterHeartbeat(
                router=name, bucket="b", url=f"http://{name}", ready=True, epoch=1
            )
            self.meta.receive(BusMessage(f"kvmesh.rt.b.{name}", encode(beat)), now)
        membership = self.meta.table.membership
        self.care = FailureCare("replica", membership, lambda _: None, 0.0, time.monotonic)
        self.ends = RequestEnds()
        self.way = Flowing("")
        self.plan = BucketPlan(self.meta, BucketRequest(), self.care, self.ends, self.way)
        self.first = self.target()

    def target(self) -> str:
        found = self.plan.next_target()
        assert isinstance(found, Target)
        assert found.gives_ids
        return found.origin

    def usable(self) -> list[str]:
        return list(self.meta.table.membership.usable(time.monotonic()))

    def failures(self) -> dict[tuple[str, str], int]:
        return self.care.failures.as_dict()


def test_a_stream_that_can_go_on_is_watched_until_it_ends() -> None:
    front = Front()

    front.plan.on_head(200)
    assert front.plan in front.care.streams.open
    front.plan.go_on(CUT, GOING)
    assert front.plan not in front.care.streams.open
    front.plan.next_target()
    front.plan.on_head(200)
    assert front.plan in front.care.streams.open
    front.plan.on_finish(Outcome("finished", 200, 2))
    front.way.scope.end()

    assert front.care.streams.open == {}


def test_one_that_cannot_is_not() -> None:
    front = Front()
    front.way.resumable = "no"

    front.plan.on_head(200)

    assert front.care.streams.open == {}


def test_a_stream_that_lost_its_replica_goes_on_at_the_other_one() -> None:
    front = Front()
    front.plan.on_head(200)

    assert front.plan.go_on(CUT, GOING)

    assert front.target() != front.first
    assert list(front.failures().values()) == [1]
    assert len(front.usable()) == 1


@pytest.mark.parametrize("kind", ["left", "bad_answer"])
def test_a_replica_that_drains_or_passed_an_error_on_did_nothing_wrong(kind: str) -> None:
    front = Front()
    front.plan.on_head(200)
    failure = UpstreamFailure("mid_response", kind, "r: says so", "http://r0")  # type: ignore[arg-type]  # a kind

    assert front.plan.go_on(failure, GOING)

    assert front.target() != front.first
    assert front.failures() == {}
    assert len(front.usable()) == 2
