"""Of hybrid engines a router knows how far each of them can go on with a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ENDS, Event, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, unpack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.oracle import Oracle
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

WORKER = WorkerId("w")
BLOCK = 4


def engine(blocks: int = 200, window: int = 0, groups: int = 1, mamba: int = 0) -> FleetEngine:
    options = EngineOptions(
        block_size=BLOCK,
        num_gpu_blocks=blocks,
        sliding_window=window,
        window_groups=groups,
        mamba_groups=mamba,
    )
    return FleetEngine(WORKER, options)


def trace(blocks: tuple[int, ...]) -> TraceRequest:
    return TraceRequest(0, 0.0, len(blocks) * BLOCK + 1, 1, blocks)


def serve(engine: FleetEngine, index: KvIndex, *requests: EngineRequest) -> None:
    for request in requests:
        engine.model.add(request, 0.0)
    while (step := engine.model.step(0.0)) is not None:
        for event in engine.fold(step.events):
            index.apply(WORKER, event)


@pytest.mark.parametrize(
    ("window", "groups", "mamba"), [(8 * BLOCK_SIZE, 3, 0), (0, 1, 2), (300, 2, 1)]
)
def test_one_at_a_time_all_predictions_of_a_hybrid_fleet_are_right(
    window: int, groups: int, mamba: int
) -> None:
    model = EngineOptions(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=700,
        sliding_window=window,
        window_groups=groups,
        mamba_groups=mamba,
    )
    options = FleetOptions(engines=3, engine=model)
    hybrid = fleet(families(150, gap_ms=5000.0), options=options)

    hybrid.run()

    predicted = [(one.overlap_blocks or 0) * BLOCK_SIZE for one in hybrid.outcomes]
    reused = [one.cached_tokens or 0 for one in hybrid.outcomes]
    assert predicted == reused
    assert sum(one > 0 for one in reused) > 75


def test_the_oracle_sees_that_an_engine_without_the_state_computes_all() -> None:
    with_state, without = engine(mamba=1), engine(mamba=1)
    blocks = tuple(range(1, 40))
    for one, length in ((without, 39), (with_state, 30)):
        [request] = make_requests([trace(blocks[:length])], BLOCK, BLOCK)
        one.model.add(EngineRequest("a", request.hashes, length * BLOCK + 1, 1), 0.0)
        while one.model.step(0.0) is not None:
            pass
    [shared] = make_requests([trace(blocks[:33])], BLOCK, BLOCK)

    assert Oracle().choose([without, with_state], shared, 0.0) == 1


def test_the_rule_comes_first_and_an_end_has_its_block_at_any_time() -> None:
    hybrid, index = engine(mamba=1, blocks=12), KvIndex()
    reported: list[Event] = []
    for number in range(3):
        hashes = [10 * number + place for place in range(1, 5)]
        hybrid.model.add(EngineRequest(str(number), hashes, 4 * BLOCK + 1, 1), 0.0)
        while (step := hybrid.model.step(0.0)) is not None:
            reported += hybrid.fold(step.events)
    for event in reported:
        index.apply(WORKER, event)

    assert reported[0] == Reuse()
    assert [one for one in reported if isinstance(one, Reuse)] == [Reuse()]
    held: dict[int, set[int]] = {0: set(), ENDS: set()}
    for one in reported[1:]:
        assert isinstance(one, Stored | Removed)
        blocks = set(unpack_hashes(one.hashes))
        tier = held[one.tier]
        held[one.tier] = tier | blocks if isinstance(one, Stored) else tier - blocks
        assert held[ENDS] <= held[0]
    assert any(isinstance(one, Removed) and one.tier == ENDS for one in reported)
    assert index.find_matches(BlockHashes.of([21, 22, 23, 24], BLOCK)) == {WORKER: 4}


@given(
    window=st.sampled_from([0, 2, 5, 9, 16]),
    groups=st.integers(1, 2),
    mamba=st.integers(0, 1),
    blocks=st.integers(60, 120),
    waves=st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 30), st.integers(1, 6)),
            min_size=1,
            max_size=3,
        ),
        max_size=8,
    ),
)
def test_the_index_has_what_the_engine_reuses(
    window: int,
    groups: int,
    mamba: int,
    blocks: int,
    waves: list[list[tuple[int, int, int, int]]],
) -> None:
    hybrid, index = engine(blocks, window, groups, mamba), KvIndex()
    for number, wave in enumerate(waves):
        requests: list[EngineRequest] = []
        for place, (conversation, shared, more, output) in enumerate(wave):
            front = [100 * (1 + conversation) + one for one in range(shared)]
            tokens = max(1, min(shared * BLOCK + more, hybrid.model.capacity_tokens - output))
            rest = [10_000 * (number + 1) + 100 * place + one for one in range(20)]
            hashes = (front + rest)[: tokens // BLOCK]
            requests.append(EngineRequest(f"{number}-{place}", hashes, tokens, output))
        lone = requests[0]
        usable = lone.hashes[: (lone.prompt_tokens - 1) // BLOCK]
        predicted = index.find_matches(BlockHashes.of(usable, BLOCK)).get(WORKER, 0)

        serve(hybrid, index, lone)
        serve(hybrid, index, *requests[1:])

        assert lone.cached_tokens == predicted * BLOCK
