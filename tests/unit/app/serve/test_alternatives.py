from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh.app.serve.alternatives import LOOKED_AT, Alternatives
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.routing.decision import RouteRequest
from tests.integration.pick.room import CHAT, Room


async def test_alternatives_are_the_next_best_of_what_was_weighed() -> None:
    room = Room(4)
    scheduler = room.context.scheduler
    request = RouteRequest("r", NO_HASHES, 100)
    decision = scheduler.explain(request, 0.0)
    find = Alternatives(2, scheduler, room.context.router.heartbeats.get, Random(1)).of_decision

    pairs = sorted(zip(decision.scores, [one.worker for one in decision.candidates], strict=True))
    best = [room.context.router.heartbeats[name].url for _, name in pairs]
    own = room.context.router.heartbeats[decision.worker].url
    found = find(decision, request, frozenset(), 0.0)
    without = find(decision, request, frozenset({pairs[1][1], pairs[2][1]}), 0.0)

    assert list(found) == [url for url in best if url != own][:2]
    assert own not in without
    assert len(without) <= 1
    await room.close()


async def test_of_a_large_fleet_few_are_looked_at_and_the_least_loaded_taken() -> None:
    room = Room(40)
    context = room.context
    scheduler = context.scheduler
    find = Alternatives(3, scheduler, context.router.heartbeats.get, Random(1)).of_plain
    worker = next(iter(context.router.heartbeats))
    states = scheduler.workers.plain("", context.clock())

    found = find(worker, "", context.clock())

    assert len(states) == 40 > LOOKED_AT
    assert len(set(found)) == 3
    assert context.router.heartbeats[worker].url not in found
    await room.close()


async def test_ranks_behind_one_address_are_no_alternatives() -> None:
    room = Room(1)
    for rank in range(3):
        room.introduce(f"r{rank}", "http://10.0.0.9:8000", dp_rank=rank)
    context = room.context
    find = Alternatives(3, context.scheduler, context.router.heartbeats.get, Random(1)).of_plain

    found = find(next(iter(context.router.heartbeats)), "", context.clock())

    assert found == ()
    await room.close()


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(2, 6))
@settings(deadline=None)
async def test_those_of_a_compiled_decision_are_the_next_cheapest(
    sizes: list[int], workers: int
) -> None:
    room = Room(workers, alternatives=3, parity_sample=0)
    for size in sizes:
        room.ask().head().body(CHAT.replace(b"hello", b"hello " * size))
    states = room.context.scheduler.workers.plain("", room.context.clock())
    stream = room.ask().head().body(CHAT)
    decision = room.context.decisions.records.latest(1)[0].decision
    decider = room.context.scheduler.decider
    assert decider is not None

    names = decider.runners_up(states, 8)
    assert names is not None
    scores = {
        one.worker: score for one, score in zip(decision.candidates, decision.scores, strict=True)
    }
    if len(scores) == workers:  # the log kept all that was weighed
        assert [scores[name] for name in names] == sorted(scores.values())
    urls = [room.context.router.heartbeats[name].url for name in names if name != decision.worker]
    reported = [f"http://{one}" for one in stream.picked.split(",")]
    assert reported[0] == room.context.router.heartbeats[decision.worker].url
    assert reported[1:] == urls[:3]
    assert decider.runners_up(tuple(states[:1]), 8) is None
    await room.close()


async def test_misuse_of_a_decider_is_an_error() -> None:
    room = Room(2)
    decider: Any = room.context.scheduler.decider
    states = room.context.scheduler.workers.plain("", room.context.clock())

    assert decider.runners_up(states, 2) is None, "nothing was decided yet"
    for arguments in ((), (states,), (states, -1), (states, 65), ([*states], 1), (states, "2")):
        with pytest.raises(TypeError):
            decider.runners_up(*arguments)
    with pytest.raises(OverflowError):
        decider.runners_up(states, 1 << 80)
    await room.close()
