import random

import msgspec

from kvmesh.actors.kernel import Log
from kvmesh.actors.messages import Tick, WorkerGone, WorkerHeartbeat, WorkerSeen
from kvmesh.actors.router import Router
from kvmesh.core.decision import RouterOptions
from kvmesh.core.events import WorkerId
from kvmesh.core.membership import Membership
from kvmesh.core.scheduler import Scheduler
from kvmesh.core.sequences import ActiveSequences

BEAT = WorkerHeartbeat(
    worker=WorkerId("w1"),
    bucket="chat",
    epoch=1,
    last_seq=0,
    url="http://w1:8000",
    models=("m",),
    block_size=16,
)


def make_router() -> Router:
    scheduler = Scheduler(
        RouterOptions(block_size=16),
        random.Random(1),
        membership=Membership(),
        sequences=ActiveSequences(block_size=16),
    )
    return Router(scheduler, block_size=16)


def test_a_worker_seen_can_be_found_until_it_is_gone() -> None:
    router = make_router()

    router.receive(WorkerSeen(BEAT), 0.0)

    assert router.heartbeat(WorkerId("w1")) == BEAT
    assert router.models() == ("m",)
    assert router.workers() == (BEAT,)

    router.receive(WorkerGone(WorkerId("w1")), 1.0)

    assert router.heartbeat(WorkerId("w1")) is None
    assert router.workers() == ()


def test_other_messages_are_ignored() -> None:
    assert list(make_router().receive(Tick(), 0.0)) == []


def test_a_differing_block_size_is_an_error_once_and_ends_when_it_agrees() -> None:
    router = make_router()
    odd = msgspec.structs.replace(BEAT, block_size=32)

    first = list(router.receive(WorkerSeen(odd), 0.0))
    again = list(router.receive(WorkerSeen(odd), 1.0))

    assert [effect.level for effect in first if isinstance(effect, Log)] == ["error"]
    assert again == []
    assert router.mismatched == {WorkerId("w1"): 32}

    router.receive(WorkerSeen(BEAT), 2.0)

    assert router.mismatched == {}
