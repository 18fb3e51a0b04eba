import random
from typing import Any

import pytest

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    lookahead_digest,
    namespace_root,
    pack_hashes,
    pack_tokens,
    sequence_hashes,
)
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import failed_attempt
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.errors import CodecError, ConfigError, NoWorkerError, RequestError
from kvmesh.library.router import BestMatch, KvRouter, RequestOptions, WorkerLoad

BLOCK_SIZE = 4
PROMPT = list(range(40))


def make_router(*workers: str, **options: object) -> KvRouter:
    router = KvRouter(random.Random(1), RouterOptions(block_size=BLOCK_SIZE), **options)  # type: ignore[arg-type]  # any option
    for worker in workers or ("w1", "w2"):
        router.add_worker(worker, 0.0)
    return router


def store(router: KvRouter, worker: str, blocks: int, root: int = ROOT) -> int:
    hashes = sequence_hashes(PROMPT, BLOCK_SIZE, root)[:blocks]
    return router.apply_event(worker, Stored(ROOT, pack_hashes(hashes)))


def test_the_worker_that_holds_most_is_chosen_and_booked() -> None:
    router = make_router()
    store(router, "w2", 8)

    best = router.find_best_match("r1", PROMPT, 0.0)

    assert best == BestMatch("w2", overlap_blocks=8, total_blocks=10)
    assert router.loads() == {"w1": WorkerLoad(0, 0, 0), "w2": WorkerLoad(1, 8, 10)}
    assert router.statistics().decisions == 1


def test_a_worker_may_have_blocks_of_a_size_of_its_own() -> None:
    router = make_router()
    router.add_worker("w2", 0.0, WorkerInfo(block_size=6))
    store(router, "w1", 4)
    hashes = sequence_hashes(PROMPT, 6)[:4]
    router.apply_event("w2", Stored(ROOT, pack_hashes(hashes)))

    assert router.find_matches_for_request(PROMPT, 0.0) == {"w1": 4, "w2": 6}
    router.remove_worker("w2")
    router.add_worker("w2", 0.0)
    router.apply_event("w2", Stored(ROOT, pack_hashes(hashes)))
    assert router.find_matches_for_request(PROMPT, 0.0) == {"w1": 4}


def test_tokens_behind_a_block_decide_where_they_are_asked_for() -> None:
    router = make_router()
    store(router, "w2", 8)
    router.apply_event("w2", Reuse(lookahead=1))
    key = extend_hash(
        sequence_hashes(PROMPT, BLOCK_SIZE)[4], lookahead_digest(bytes(pack_tokens(PROMPT[20:21])))
    )
    router.apply_event("w2", Stored(ROOT, pack_hashes([key]), ENDS))

    found = router.find_matches_for_request(PROMPT, 0.0)

    assert found == {"w2": 5}
    assert router.find_best_match("r1", PROMPT, 0.0).overlap_blocks == 5


def test_a_booking_goes_from_prefill_to_output_to_its_end() -> None:
    router = make_router("w1")
    router.find_best_match("r1", PROMPT, 0.0)
    assert router.loads()["w1"] == WorkerLoad(1, 40, 10)

    router.mark_prefill_completed("r1", 0.5)
    assert router.loads()["w1"] == WorkerLoad(1, 0, 10)

    router.add_output_tokens("r1", 8, 0.6)
    assert router.loads()["w1"] == WorkerLoad(1, 0, 12)

    router.free("r1", 1.0)
    router.free("r1", 1.0)
    assert router.loads()["w1"] == WorkerLoad(0, 0, 0)


def test_a_burst_is_spread_since_each_decision_sees_the_last() -> None:
    router = make_router()

    chosen = [
        router.find_best_match(f"r{number}", range(number * 100, number * 100 + 40), 0.0).worker_id
        for number in range(4)
    ]

    assert sorted(chosen) == ["w1", "w1", "w2", "w2"]


def test_an_id_is_booked_once_and_may_come_again_after_its_end() -> None:
    router = make_router()
    first = router.find_best_match("r1", PROMPT, 0.0)

    with pytest.raises(RequestError, match="'r1' is booked already: free it first"):
        router.find_best_match("r1", PROMPT, 0.0)
    router.free("r1", 0.1, failed_attempt("reset"))
    again = RequestOptions(excluded=frozenset({first.worker_id}))

    assert router.find_best_match("r1", PROMPT, 0.2, again).worker_id != first.worker_id


def test_what_was_routed_is_found_again_without_events() -> None:
    router = make_router(use_kv_events=False)
    first = router.find_best_match("r1", PROMPT, 0.0)

    assert router.find_matches_for_request(PROMPT, 1.0) == {first.worker_id: 10}
    assert router.find_matches_for_request(PROMPT, 500.0) == {}
    with pytest.raises(ConfigError, match="use_kv_events=False"):
        router.apply_event("w1", Cleared())


def test_events_are_found_by_namespace_and_a_gap_is_reported() -> None:
    router = make_router()
    root = namespace_root(tenant="a")
    store(router, "w1", 3, root)

    assert router.find_matches_for_request(PROMPT, 0.0) == {}
    assert router.find_matches_for_request(PROMPT, 0.0, root) == {"w1": 3}
    assert router.find_best_match("r1", PROMPT, 0.0, RequestOptions(root=root)).overlap_blocks == 3
    assert router.apply_event("w1", Stored(12345, pack_hashes([1, 2]))) == 2


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (RequestOptions(worker_id="w3", mode="direct"), "w3"),
        (RequestOptions(allowed_workers=frozenset({"w2"})), "w2"),
        (RequestOptions(labels=frozenset({"gpu"})), "w3"),
        (RequestOptions(model="b"), "w2"),
        (RequestOptions(cost="prefill-decode", temperature=0.0, overlap_score_weight=5.0), "w1"),
        (RequestOptions(output_tokens=100, streams=False), "w1"),
    ],
)
def test_a_request_may_ask_for_more(options: RequestOptions, chosen: str) -> None:
    router = make_router("w1")
    router.add_worker("w2", 0.0, WorkerInfo(models=("a", "b")))
    router.add_worker("w3", 0.0, WorkerInfo(models=("a",), labels=frozenset({"gpu"})))
    router.add_worker("w1", 0.0, WorkerInfo(models=("a",)))
    store(router, "w1", 9)

    assert router.find_best_match("r1", PROMPT, 0.0, options).worker_id == chosen


def test_a_session_stays_where_it_began() -> None:
    router = make_router(sessions=SessionOptions(affinity="hard"))
    talk = RequestOptions(session="talk")
    first = router.find_best_match("r1", PROMPT, 0.0, talk)
    other = "w1" if first.worker_id == "w2" else "w2"
    store(router, other, 10)

    assert router.find_best_match("r2", PROMPT, 0.1, talk).worker_id == first.worker_id


def test_an_explanation_weighs_everybody_and_changes_nothing() -> None:
    router = make_router("w1", "w2", "w3")
    store(router, "w2", 8)
    router.drain_worker("w3", 0.0)

    view = router.explain(PROMPT, 0.0)

    assert (view.worker, view.overlap_blocks, view.considered) == ("w2", 8, 2)
    assert {one.worker: one.uncached_tokens for one in view.candidates} == {"w1": 40, "w2": 8}
    assert view.left_out is not None
    assert "draining" in str(view.left_out)
    assert router.statistics().decisions == 0
    assert router.find_best_match("r1", PROMPT, 0.0).worker_id == "w2"


def test_a_drained_worker_gets_nothing_until_it_is_added_again() -> None:
    router = make_router()
    router.drain_worker("w1", 0.0)
    assert router.worker_ids(0.0) == ["w2"]

    router.add_worker("w1", 1.0)
    assert router.worker_ids(1.0) == ["w1", "w2"]


def test_a_worker_that_goes_takes_its_cache_and_its_load_along() -> None:
    router = make_router()
    store(router, "w2", 8)
    router.find_best_match("r1", PROMPT, 0.0)

    assert router.remove_worker("w2") == ["r1"]
    assert router.worker_ids(0.0) == ["w1"]
    assert router.find_matches_for_request(PROMPT, 0.0) == {}
    assert router.find_best_match("r1", PROMPT, 0.0).worker_id == "w1"
    assert make_router(use_kv_events=False).remove_worker("w1") == []


def test_a_worker_that_fails_is_left_out_for_a_while() -> None:
    router = make_router()
    router.find_best_match("r1", PROMPT, 0.0, RequestOptions(worker_id="w1"))
    router.free("r1", 0.1, failed_attempt("reset", 0.1))

    assert router.worker_ids(0.2) == ["w2"]
    with pytest.raises(NoWorkerError, match="w1: ejected"):
        router.find_best_match("r2", PROMPT, 0.2, RequestOptions(worker_id="w1"))
    router.maintain(60.0)
    assert router.worker_ids(60.0) == ["w1", "w2"]


def test_requests_without_a_sign_of_life_are_released() -> None:
    router = make_router(lease_s=10.0)
    for name in ("r1", "r2"):
        router.find_best_match(name, PROMPT, 0.0)

    assert router.maintain(9.0) == []
    router.renew(["r2"], 9.0)
    assert router.maintain(11.0) == ["r1"]
    assert make_router(use_kv_events=False).maintain(0.0) == []


def test_a_worker_that_nobody_added_is_named() -> None:
    router = make_router()

    with pytest.raises(RequestError, match="worker 'w9' is not known: call add_worker first"):
        router.drain_worker("w9", 0.0)
    with pytest.raises(RequestError, match="worker 'w9' is not known: call add_worker first"):
        router.report_load("w9", LoadReport())


def test_a_dump_is_restored_whole_or_not_at_all() -> None:
    router, warm = make_router(), make_router()
    store(router, "w1", 7)

    warm.restore(router.dump())

    assert warm.find_matches_for_request(PROMPT, 0.0) == {"w1": 7}
    with pytest.raises(CodecError):
        warm.restore(b"garbage")
    assert warm.find_matches_for_request(PROMPT, 0.0) == {"w1": 7}


def test_it_decides_as_the_scheduler_of_a_router_does() -> None:
    router = make_router("w1", "w2", "w3")
    index, membership = KvIndex(), Membership()
    scheduler = Scheduler(
        RouterOptions(block_size=BLOCK_SIZE),
        random.Random(1),
        membership=membership,
        sequences=new_sequences(BLOCK_SIZE),
        index=index,
        routed=new_approx(thinned=True),
    )
    for worker in ("w1", "w2", "w3"):
        membership.add(worker, 0.0)
    draw = random.Random(2)

    for number in range(300):
        now, name = number / 50, f"r{number}"
        family, length = draw.randrange(6), draw.randrange(1, 60)
        tokens = [family * 1000 + one for one in range(length)]
        held = Stored(ROOT, pack_hashes(sequence_hashes(tokens, BLOCK_SIZE)))
        worker = draw.choice(["w1", "w2", "w3"])
        assert router.apply_event(worker, held) == index.apply(WorkerId(worker), held)
        hashes = BlockHashes(tokens, BLOCK_SIZE)

        best = router.find_best_match(name, tokens, now)
        decision = scheduler.schedule(RouteRequest(name, hashes, length), now).record.decision

        assert (best.worker_id, best.overlap_blocks) == (decision.worker, decision.overlap_blocks)
        if number % 2:
            router.mark_prefill_completed(name, now + 0.01)
            scheduler.first_token(name, now + 0.01)
        if number >= 5:
            router.free(f"r{number - 5}", now + 0.015)
            scheduler.finish(f"r{number - 5}", now + 0.015)
    assert router.statistics() == scheduler.statistics()


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_size is 0"):
        KvRouter(random.Random(1), RouterOptions(block_size=0))
    with pytest.raises(RequestError):
        make_router().find_best_match("r1", [-1] * 8, 0.0)
    with pytest.raises(RequestError, match="nonsense"):
        make_router().find_best_match("r1", PROMPT, 0.0, RequestOptions(cost="nonsense"))


@pytest.mark.parametrize("name", ["temperature", "overlap_score_weight", "output_tokens"])
@pytest.mark.parametrize("value", [-1, 1e308, float("nan"), float("inf"), 10**400])
def test_a_number_beyond_its_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name} is .*: use a number from 0 to "):
        RequestOptions(**{name: value})
