import random

import msgspec
import pytest
from msgspec import UNSET

from kvmesh.actors.kernel import Log
from kvmesh.actors.messages import (
    Tick,
    WorkerGone,
    WorkerHeartbeat,
    WorkerLoad,
    WorkerSeen,
)
from kvmesh.actors.router import MOST_LEFT_OUT, Router
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import failed_attempt
from kvmesh.core.members.progress import Due
from kvmesh.core.members.worker_info import AdapterReport
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.disaggregation import PREFILL
from kvmesh.core.routing.scheduler import Scheduler

BEAT = WorkerHeartbeat(
    worker=WorkerId("w1"),
    bucket="chat",
    epoch=1,
    last_seq=0,
    url="http://w1:8000",
    models=("m",),
    block_size=16,
)


def make_router(secret_mark: int = 0, block_size: int | None = 16) -> Router:
    scheduler = Scheduler(
        RouterOptions(block_size=16),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(block_size=16),
    )
    router = Router(scheduler, block_size, secret_mark=secret_mark)
    router.resized.append(scheduler.resize)
    return router


def test_a_worker_seen_can_be_found_until_it_is_gone() -> None:
    router = make_router()

    router.receive(WorkerSeen(BEAT), 0.0)

    assert router.heartbeats.get(WorkerId("w1")) == BEAT
    assert router.models() == ("m",)
    assert router.workers() == (BEAT,)

    router.receive(WorkerGone(WorkerId("w1")), 1.0)

    assert router.heartbeats.get(WorkerId("w1")) is None
    assert router.workers() == ()


def test_a_worker_is_found_by_its_url_unless_it_has_failed() -> None:
    router = make_router()
    second = msgspec.structs.replace(BEAT, worker=WorkerId("w2"))
    for beat in (BEAT, second):
        router.receive(WorkerSeen(beat), 0.0)

    left_out: tuple[set[WorkerId], ...] = (set(), {BEAT.worker}, {BEAT.worker, second.worker})
    found = [router.worker_at(BEAT.url, failed) for failed in left_out]

    assert found == ["w1", "w2", None]
    assert router.worker_at("http://w3:8000", ()) is None


@pytest.mark.parametrize("change", [{"epoch": 2}, {"answering": False}])
def test_an_engine_that_began_anew_or_hangs_holds_no_adapter_ready(
    change: dict[str, int | bool],
) -> None:
    router = make_router()
    worker, adapters = BEAT.worker, router.scheduler.workers.adapters
    router.receive(WorkerSeen(BEAT), 0.0)
    adapters.receive(worker, AdapterReport(2, ("poet",)))
    router.receive(WorkerSeen(BEAT), 1.0)
    assert adapters.held(worker) == ("poet",)

    router.receive(WorkerSeen(msgspec.structs.replace(BEAT, **change)), 2.0)

    assert adapters.held(worker) == ()


def test_what_was_sent_to_an_engine_is_not_believed_with_other_weights() -> None:
    router, now, prompt = make_router(), 0.0, [*range(100, 108)]
    believed = router.scheduler.overlaps.routed = new_approx(thinned=True)
    overlaps = []
    for weights in (UNSET, "1", "1", "2", UNSET, "2"):
        router.receive(WorkerSeen(msgspec.structs.replace(BEAT, weights=weights)), now)
        overlaps.append(believed.sizes([BEAT.worker])[0])
        believed.record(BEAT.worker, prompt, now, 100.0)

    assert overlaps == [0, 8, 8, 0, 8, 8]


def test_adapters_are_known_while_some_worker_has_them() -> None:
    router = make_router()
    live = router.adapters

    router.receive(WorkerSeen(msgspec.structs.replace(BEAT, adapters=("a", "b"))), 0.0)
    both = set(live)
    router.receive(WorkerSeen(msgspec.structs.replace(BEAT, adapters=("b",))), 0.0)

    assert (both, live) == ({"a", "b"}, {"b"})


def test_who_prefills_for_others_is_known_while_it_does() -> None:
    router = make_router()
    prefills = msgspec.structs.replace(BEAT, labels=(PREFILL,))

    router.receive(WorkerSeen(prefills), 0.0)
    before = set(router.prefillers)
    router.receive(WorkerSeen(BEAT), 0.0)
    after = set(router.prefillers)
    router.receive(WorkerSeen(prefills), 0.0)
    router.receive(WorkerGone(BEAT.worker), 0.0)

    assert (before, after, router.prefillers) == ({BEAT.worker}, set(), set())


def test_who_wants_to_be_told_of_answers_is_known_while_it_does() -> None:
    router = make_router()
    wanting = msgspec.structs.replace(BEAT, wants_answers=True)

    for beat in (wanting, BEAT, wanting):
        router.receive(WorkerSeen(beat), 0.0)
        assert router.wanting == ({BEAT.worker} if beat is wanting else set())
    router.receive(WorkerGone(BEAT.worker), 0.0)

    assert router.wanting == set()


def test_other_messages_are_ignored() -> None:
    assert list(make_router().receive(Tick(), 0.0)) == []


def test_blocks_of_another_size_than_given_are_looked_for_until_their_worker_leaves() -> None:
    router = make_router()

    effects = list(router.receive(WorkerSeen(msgspec.structs.replace(BEAT, block_size=32)), 0.0))

    assert effects == []
    assert [*router.scheduler.overlaps.sizes] == [32]
    router.receive(WorkerGone(BEAT.worker), 1.0)
    assert [*router.scheduler.overlaps.sizes] == []
    assert router.scheduler.options.block_size == 16


def test_without_a_block_size_given_that_in_which_all_workers_can_be_counted_is_taken() -> None:
    router = make_router(block_size=None)
    one, two = (
        msgspec.structs.replace(BEAT, worker=WorkerId(name), block_size=size)
        for name, size in (("w1", 64), ("w2", 32))
    )

    first = list(router.receive(WorkerSeen(one), 0.0))
    second = list(router.receive(WorkerSeen(two), 1.0))
    both = router.sizes.size, router.scheduler.overlaps.sizes
    gone = list(router.receive(WorkerGone(WorkerId("w2")), 3.0))

    assert [(log.level, log.event) for log in first if isinstance(log, Log)] == [
        ("info", "block size taken from the workers")
    ]
    assert [(log.level, log.fields) for log in second if isinstance(log, Log)] == [
        ("warning", {"block_size": 32, "before": 64, "others": "64"})
    ]
    assert both == (32, (64,))
    assert [log.fields["before"] for log in gone if isinstance(log, Log)] == [32]
    assert router.scheduler.options.block_size == router.sizes.size == 64
    assert [*router.scheduler.overlaps.sizes] == []


def test_a_block_size_that_is_not_followed_is_an_error_once_and_ends() -> None:
    router = make_router()
    odd = msgspec.structs.replace(BEAT, block_size=10**25)

    first = list(router.receive(WorkerSeen(odd), 0.0))
    again = list(router.receive(WorkerSeen(odd), 1.0))

    assert [effect.level for effect in first if isinstance(effect, Log)] == ["error"]
    assert again == []
    assert router.sizes.odd == {WorkerId("w1"): 10**25}

    router.receive(WorkerSeen(BEAT), 2.0)

    assert router.sizes.odd == {}


def test_a_worker_with_another_hash_secret_is_an_error_once_and_ends_when_it_agrees() -> None:
    router = make_router(secret_mark=7)
    odd = msgspec.structs.replace(BEAT, secret_mark=8)

    first = list(router.receive(WorkerSeen(odd), 0.0))
    again = list(router.receive(WorkerSeen(odd), 1.0))

    assert [effect.event for effect in first if isinstance(effect, Log)] == [
        "hash secrets differ, no prefix can match"
    ]
    assert again == []
    assert router.strangers == {WorkerId("w1")}

    router.receive(WorkerSeen(msgspec.structs.replace(BEAT, secret_mark=7)), 2.0)
    assert router.strangers == set()
    router.receive(WorkerSeen(odd), 3.0)
    router.receive(WorkerGone(WorkerId("w1")), 4.0)
    assert router.strangers == set()


def test_workers_that_can_never_match_are_named_with_the_remedy() -> None:
    router = make_router()
    assert router.unmatched() == []
    for worker, changes in (("w1", {"block_size": 10**25}), ("w2", {"secret_mark": 5})):
        beat = msgspec.structs.replace(BEAT, worker=WorkerId(worker), **changes)
        router.receive(WorkerSeen(beat), 0.0)

    [(first, sizes), (second, secrets)] = router.unmatched()

    assert (first, second) == ("w1", "w2")
    assert "routers follow 8 block sizes" in sizes
    assert "--hash-secret-file" in secrets


def test_a_buckets_heat_is_its_least_busy_workers_backlog() -> None:
    router = make_router()
    assert router.heat(0.0) == BucketHeat()
    for name, tokens in (("w1", 10_000), ("w2", 2_000)):
        router.scheduler.workers.membership.add(name, 0.0)
        router.scheduler.sequences.add(name, WorkerId(name), Demand(tokens, tokens), 0.0)

    heat = router.heat(0.0)

    assert heat.workers == 2
    assert heat.backlog_ms == pytest.approx(2_000 * heat.ms_per_token)


def test_workers_left_out_for_failing_are_named_a_few_at_most() -> None:
    router = make_router()
    membership = router.scheduler.workers.membership
    membership.health.asks = True
    for number in range(100):
        membership.add(f"w{number:02d}", 0.0)
    assert router.left_out(0.0) == ()

    for number in range(99):
        membership.note(f"w{number:02d}", failed_attempt("refused"), 0.0)

    assert router.left_out(0.0) == tuple(f"w{number:02d}" for number in range(MOST_LEFT_OUT))


def test_who_wants_to_know_is_told_when_a_worker_joins_or_moves() -> None:
    router, reported = make_router(), []
    router.located.append(lambda: reported.append(BEAT.url))

    router.receive(WorkerSeen(BEAT), 0.0)
    router.receive(WorkerSeen(BEAT), 1.0)
    assert len(reported) == 1
    router.receive(WorkerSeen(msgspec.structs.replace(BEAT, url="http://w9:8000")), 2.0)
    assert len(reported) == 2


def beat(reading: int, computed: int, **more: object) -> WorkerSeen:
    load = WorkerLoad(running_requests=1, computed_tokens=computed)
    return WorkerSeen(msgspec.structs.replace(BEAT, reading=reading, load=load, **more))


def is_stalled(router: Router, now: float) -> bool:
    return router.progress.is_stalled(WorkerId("w1"), [Due(0.0)], now)


def test_an_engine_whose_figures_stand_still_in_its_heartbeats_is_known_to_hang() -> None:
    router = make_router()
    for second in range(7):
        router.receive(beat(second + 1, 500), float(second))

    assert is_stalled(router, 6.0)
    router.receive(WorkerGone(WorkerId("w1")), 6.0)
    assert not is_stalled(router, 6.0)


@pytest.mark.parametrize("shown", ["tokens", "events"])
def test_tokens_and_events_of_its_heartbeats_show_that_it_works(shown: str) -> None:
    router = make_router()
    for second in range(7):
        more = {"last_seq": second} if shown == "events" else {}
        router.receive(beat(second + 1, 500 + second * (shown == "tokens"), **more), float(second))

    assert not is_stalled(router, 6.5)


def test_figures_that_a_heartbeat_repeats_show_nothing() -> None:
    router = make_router()
    for second in range(60):
        router.receive(beat(1, 500), float(second))
    assert not is_stalled(router, 60.0)

    for second in range(60, 70):
        router.receive(beat(0, 500), float(second))
    assert is_stalled(router, 69.5), "a router alone does not number what it reads"
