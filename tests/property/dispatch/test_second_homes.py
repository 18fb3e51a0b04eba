"""A worker at rest becomes a second home: both cores, and a naive model, name the same one."""

import json
import random
from itertools import count
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import scan
from kvmesh.app.prompts.request_wishes import NO_WISHES
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.routing.second_home import DELAY, NEW_HOME, REST

SIZE = 4
NOW = 1000.0
PREFIX = "You answer in one sentence. " * 40
BLOCKS = 250
tokenizer = ByteTokenizer()


def hashes_of(text: str) -> BlockHashes:
    ids = tokenizer.pack_chat(ChatInput([{"role": "user", "content": text}]))
    return BlockHashes(ids, SIZE, ids=ids.encode("utf-32-le"))


class Worker(NamedTuple):
    """What a worker is made of: the share of the prefix it holds, requests there that share so
    much of it, when its last prefill was, how long requests stay, how often they fail.
    """

    held: float
    active: int
    shared: float
    rested_s: float
    stay_s: float
    failing: bool


FULL = st.builds(
    Worker,
    held=st.just(1.0),
    active=st.integers(1, 3),
    shared=st.sampled_from([0.5, 1.0, 1.0, 1.0]),
    rested_s=st.just(0.0),
    stay_s=st.sampled_from([0.1, 1.0, 60.0]),
    failing=st.just(False),
)
OTHER = st.builds(
    Worker,
    held=st.sampled_from([0.0, 0.0, 0.3, 0.6, 1.0]),
    active=st.sampled_from([0, 0, 1, 3]),
    shared=st.sampled_from([0.5, 1.0]),
    rested_s=st.sampled_from([0.0, 0.5, 2.0, 100.0]),
    stay_s=st.sampled_from([0.0, 0.1, 60.0]),
    failing=st.sampled_from([False, False, False, True]),
)
WORKERS = st.builds(lambda full, others: [full, *others], FULL, st.lists(OTHER, max_size=5))


def make_scheduler(workers: list[Worker], seed: int) -> Scheduler:
    membership, index = Membership(), KvIndex()
    scheduler = Scheduler(
        RouterOptions(block_size=SIZE),
        random.Random(seed),
        membership=membership,
        sequences=new_sequences(SIZE),
        index=index,
        routed=new_approx(thinned=True),
    )
    prefix = hashes_of(PREFIX).upto(BLOCKS)
    for number, one in enumerate(workers):
        worker = WorkerId(f"w{number}")
        membership.add(worker, 0.0)
        if one.held:
            index.store(worker, ROOT, pack_hashes(prefix[: int(one.held * BLOCKS)]))
        keys = tuple(sharing_keys(prefix[: int(one.shared * BLOCKS)]))
        demand = Demand(prompt_tokens=BLOCKS * SIZE, uncached_tokens=SIZE, keys=keys)
        then = NOW - one.rested_s
        for request in range(max(1, one.active)):
            name = f"{worker}/{request}"
            scheduler.sequences.add(name, worker, demand, then - 0.01)
            scheduler.sequences.first_token(name, then)
            if not one.active:
                scheduler.sequences.finish(name)
        if one.stay_s:
            scheduler.speeds.finished(worker, one.stay_s, 10)
        if one.failing:
            scheduler.workers.state(worker).failure_share = 0.25
    return scheduler


def expected(scheduler: Scheduler, request: RouteRequest, cheapest: WorkerId) -> set[WorkerId]:
    """Return the workers that may become a home instead of the cheapest, {it} where there is none:
    as the docstrings say, without any of the code.
    """
    prefix = request.hashes.upto(BLOCKS)
    overlaps = dict(scheduler.overlaps.find(request.hashes, NOW).overlaps)
    overlap, loads = overlaps.get(cheapest, 0), scheduler.sequences.loads(cheapest)
    deepest = overlap // 16 * 16
    if not loads.active_requests or not deepest or prefix[deepest - 1] not in loads.shared:
        return {cheapest}
    prices: dict[WorkerId, float] = {}
    for worker in scheduler.workers.everyone(NOW):
        state = scheduler.workers.state(worker)
        held = overlaps.get(worker, 0)
        ms = (overlap - held) * SIZE * scheduler.speeds.ms_per_token(worker)
        if state.loads.active_requests or state.failure_share or held > NEW_HOME * overlap:
            continue
        rested_ms = (NOW - state.loads.progress_s) * 1000.0
        if ms < DELAY * scheduler.speeds.residence_ms(cheapest) and rested_ms >= REST * ms:
            prices[worker] = ms
    if not prices:
        return {cheapest}
    return {worker for worker, ms in prices.items() if ms == min(prices.values())}


@given(workers=WORKERS, seed=st.integers(0, 3), tail=st.integers(0, 400))
def test_it_is_who_a_naive_model_says(workers: list[Worker], seed: int, tail: int) -> None:
    text = PREFIX + "x" * tail
    request = RouteRequest("asked", hashes_of(text), len(text) + 20)
    scheduler = make_scheduler(workers, seed)
    whole = scheduler.explain(request, NOW)
    least = min(whole.scores) * (1.0 + whole.cost.margin)
    ties = [
        one.worker
        for one, cost in zip(whole.candidates, whole.scores, strict=True)
        if cost <= least
    ]

    chosen = scheduler.schedule(request, NOW).record.decision.worker

    assert chosen in set().union(
        *(expected(make_scheduler(workers, seed), request, one) for one in ties)
    )


@given(workers=WORKERS, seed=st.integers(0, 3), tail=st.integers(0, 400))
def test_the_compiled_way_takes_the_same_worker(
    workers: list[Worker], seed: int, tail: int
) -> None:
    placer = Placer(make_dispatch(workers, seed))
    twin = make_scheduler(workers, seed)
    for number, text in enumerate((PREFIX + "x" * tail, PREFIX + "y" * 90)):
        message = {"role": "user", "content": text}
        body = {"model": "m", "stream": True, "messages": [message]}
        scanned = scan(json.dumps(body).encode(), True)
        assert scanned is not None
        placed = placer.decide(ScannedPrompt(scanned), f"r{number}".encode(), NO_WISHES, NOW)
        hashes = hashes_of(text)
        tokens = len(tokenizer.pack_chat(ChatInput([{"role": "user", "content": text}])))
        decision = twin.schedule(
            RouteRequest(f"r{number}", hashes, tokens, streams=True), NOW
        ).record.decision

        assert placed is not None
        assert not isinstance(placed, int | float)
        assert placed.record.worker == decision.worker
        assert placed.record.decision.score == decision.score


def make_dispatch(workers: list[Worker], seed: int) -> Dispatch:
    return Dispatch(
        make_scheduler(workers, seed),
        DecisionLog(),
        map(float, count()).__next__,
        lambda _, __: None,
        follows_events=True,
    )


MOVES = [Worker(1.0, 2, 1.0, 0.0, 10.0, False), Worker(0.0, 0, 1.0, 100.0, 0.0, False)]


def test_both_move_a_request_that_many_share_to_a_worker_at_rest() -> None:
    request = RouteRequest("asked", hashes_of(PREFIX + "x" * 40), 1200)

    assert make_scheduler(MOVES, 0).schedule(request, NOW).record.decision.worker == "w1"
    assert expected(make_scheduler(MOVES, 0), request, WorkerId("w0")) == {"w1"}
