"""Ended requests as they are counted: exactly while they are few, by a sample when many."""

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from kvmesh._native import Head
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.static_registry import DOWN
from kvmesh.app.serve.routing_context import MOST_ENDED, Ended, RoutingContext
from kvmesh.app.views.traffic_watch import MOST_COUNTED, TrafficWatch, count_ended
from kvmesh.core.admission.sibling_counters import SharedLimits
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.flow import Flow
from kvmesh.core.members.membership import DRAINING
from kvmesh.transport.http.server.scope import End


def record(usage: Usage | None = None, **more: Any) -> Any:
    reported = {
        "reported": usage,
        "output_tokens": 6,
        "prompt_tokens": 90,
        "decided_s": 1.0,
        "first_token_s": 1.5,
        "ended_s": 2.5,
    }
    return SimpleNamespace(**(reported | more))


def ended(one: Any, tenant: str, kind: End, status: int) -> Ended:
    return one, "m", tenant, kind, status, cast("Dispatched", None), Head(()), None


def counted(one: Any, kind: End = "finished", status: int = 200) -> Flow:
    flow = Flow()
    count_ended(flow, ended(one, "t", kind, status))
    return flow


def test_the_engines_word_counts_before_what_was_booked() -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=60)

    assert counted(record(usage)) == Flow(
        requests=1.0,
        prompt_tokens=100,
        output_tokens=11,
        ttft_ms=500.0,
        first_tokens=1,
        decode_ms=1000.0,
        decode_tokens=10,
    )
    untold = counted(record(Usage(prompt_tokens=0, completion_tokens=0)))
    assert (untold.prompt_tokens, untold.output_tokens) == (90, 6)
    assert untold.decode_tokens == 5


def test_what_ended_early_has_the_tokens_that_came_and_no_time_per_token() -> None:
    left = counted(record(), "client_gone")

    assert (left.errors, left.output_tokens, left.first_tokens) == ({"499": 1.0}, 6, 1)
    assert (left.prompt_tokens, left.decode_tokens) == (0, 0)
    assert counted(None, "refused", 503) == Flow(requests=1.0, errors={"5xx": 1.0})
    whole = counted(record(first_token_s=None))
    assert (whole.first_tokens, whole.decode_tokens, whole.prompt_tokens) == (0, 0, 90)
    assert counted(record(output_tokens=1)).decode_tokens == 0


class Door:
    """A watch over a queue that a test fills; the clock stands."""

    def __init__(self) -> None:
        self.ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        context = SimpleNamespace(
            counters=SimpleNamespace(ended=self.ended),
            clock=lambda: 100.0,
            bucket="chat",
            router_id="r0",
            router=SimpleNamespace(workers=tuple, admission=SharedLimits()),
            gate=SimpleNamespace(waiting={}),
            patience=SimpleNamespace(waiting=0),
        )
        self.watch = TrafficWatch(cast("RoutingContext", context))

    def end(self, count: int, kind: End = "finished", status: int = 200, tenant: str = "t") -> None:
        self.ended.extend([ended(record(), tenant, kind, status)] * count)


@pytest.mark.parametrize("good", [3, MOST_COUNTED, 5 * MOST_COUNTED + 7])
async def test_many_are_counted_by_a_sample_and_every_error_is(good: int) -> None:
    door = Door()
    door.end(good)
    door.end(4, "failed", 502, tenant="u")

    await door.watch.catch_up()

    row = door.watch.traffic(101.0)
    assert not door.ended
    assert row.requests_per_s == pytest.approx(good + 4, rel=1e-9)
    assert row.errors_per_s["5xx"] == 4.0
    tenants = {one.tenant: one.errors_per_s for one in door.watch.tenants(101.0)}
    assert tenants == {"t": 0.0, "u": 4.0}
    assert [one.model for one in door.watch.models(101.0)] == ["m"]


async def test_what_waits_to_be_counted_is_bounded() -> None:
    door = Door()
    door.end(3 * MOST_ENDED)

    await door.watch.catch_up()
    await door.watch.catch_up()

    assert door.watch.traffic(101.0).requests_per_s == pytest.approx(MOST_ENDED, rel=1e-9)


def beat_of(worker: str) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker=WorkerId(worker),
        bucket="chat",
        epoch=1,
        last_seq=0,
        url="",
        models=(),
        block_size=16,
    )


def test_members_that_change_and_bounds_that_are_changed_are_marked() -> None:
    beats = [beat_of(one) for one in ("w0", "w1", "w2")]
    whys: dict[str, str] = {}
    router = SimpleNamespace(workers=lambda: beats, admission=SharedLimits())
    context = SimpleNamespace(
        bucket="chat",
        router_id="r0",
        router=router,
        clock=lambda: 100.0,
        workers=SimpleNamespace(
            membership=SimpleNamespace(why_not=lambda name, now: whys.get(name) if now else None)
        ),
    )
    watch = TrafficWatch(cast("RoutingContext", context))
    sibling = RouterHeartbeat(router="r1", bucket="chat", url="", ready=True, epoch=1)
    siblings = [sibling, msgspec.structs.replace(sibling, router="r0")]
    watch.siblings = lambda: siblings
    watch.mark(101.0)

    beats[0] = msgspec.structs.replace(beats[0], incarnation=7)
    whys.update(w1=DOWN, w2=DRAINING)
    siblings[:] = [msgspec.structs.replace(one, epoch=2) for one in siblings]
    router.admission = SharedLimits(1.0, "r1", {})
    watch.mark(102.0)
    watch.mark(103.0)

    assert [(one.kind, one.who, one.at) for one in watch.marks.rows(0.0)] == [
        ("restart", "r0", 100.0),
        ("restart", "w0", 102.0),
        ("down", "w1", 102.0),
        ("drain", "w2", 102.0),
        ("restart", "r1", 102.0),
        ("setting", "r1", 102.0),
    ]
