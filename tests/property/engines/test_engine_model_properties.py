from hypothesis import given
from hypothesis import strategies as st

from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    EngineEvent,
    EngineRequest,
)
from kvmesh_lab.mocker.model.timing import PROFILES
from tests.property.engines.naive_engine import NaiveEngine, NaiveRequest

TIMING = PROFILES["preble-70b"]


def plain(events: list[EngineEvent]) -> list[tuple[str, tuple[int, ...]]]:
    result: list[tuple[str, tuple[int, ...]]] = []
    for event in events:
        match event:
            case BlocksStored():
                first = event.first_block
                assert event.request.hashes[first : first + len(event.hashes)] == event.hashes
                parent = event.request.hashes[first - 1] if first else 0
                assert event.parent == parent
                result.append(("stored", tuple(event.hashes)))
            case BlocksRemoved():
                result.append(("removed", tuple(event.hashes)))
            case CacheCleared():
                result.append(("cleared", ()))
    return result


def chain(path: list[int], blocks: int) -> list[int]:
    """Hashes of a sequence: equal paths give equal hashes; past its end the path is its own."""
    hashes, parent = [], 1
    for step in (path + [path[-1] if path else 7] * blocks)[:blocks]:
        parent = (parent * 31 + step + 1) % (1 << 61)
        hashes.append(parent)
    return hashes


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.lists(st.integers(0, 1), max_size=5),
            st.integers(1, 40),
            st.integers(1, 20),
        ),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("leap"), st.integers(1, 30)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("reset")),
    ),
    min_size=1,
    max_size=40,
)


def leap(engine: EngineModel, naive: NaiveEngine, limit: int) -> None:
    """Skip the steps foreseen, after checking that the naive engine does nothing else in them."""
    running = [request.request_id for request in engine.decoding]
    foreseen_s = engine.foresee(limit)
    for duration_s in foreseen_s:
        want = naive.step()
        assert want is not None
        assert abs(duration_s * 1000 - want[0]) < 1e-6
        assert want[1:] == (running, [], [])
    engine.skip(len(foreseen_s))


@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(4, 40), st.integers(1, 6), st.integers(6, 40)),
    plan=actions,
)
def test_the_engine_schedules_caches_and_times_like_the_naive_one(
    sizes: tuple[int, int, int, int], plan: list[tuple[object, ...]]
) -> None:
    block_size, blocks, max_seqs, budget = sizes
    engine = EngineModel(
        EngineOptions(
            block_size=block_size,
            num_gpu_blocks=blocks,
            max_num_seqs=max_seqs,
            max_num_batched_tokens=budget,
            timing=TIMING,
        )
    )
    naive = NaiveEngine(sizes, TIMING)
    fast: dict[str, EngineRequest] = {}
    slow: dict[str, NaiveRequest] = {}

    def step() -> bool:
        got, want = engine.step(0.0), naive.step()
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            assert abs(got.duration_s * 1000 - want[0]) < 1e-6
            assert [request.request_id for request in got.produced] == want[1]
            assert sorted(request.request_id for request in got.finished) == want[2]
            assert plain(got.events) == want[3]
        assert engine.pool.free_blocks == len(naive.pool.free)
        assert sorted(engine.pool.hashes()) == naive.pool.hashes()
        for name, request in fast.items():
            assert engine.produced_tokens(request) == slow[name].generated
        return got is not None

    for action in plan:
        match action:
            case ("add", list(path), int(prompt), int(output)):
                if prompt + output > engine.capacity_tokens:
                    continue
                name = f"r{len(fast)}"
                hashes = chain(path, -(-(prompt + output) // block_size))
                fast[name] = EngineRequest(name, hashes, prompt, output)
                slow[name] = NaiveRequest(name, hashes, prompt, output)
                engine.add(fast[name], 0.0)
                naive.waiting.append(slow[name])
            case ("step", int(count)):
                for _ in range(count):
                    step()
            case ("leap", int(limit)):
                leap(engine, naive, limit)
            case ("abort", int(number)):
                engine.abort(f"r{number}")
                naive.abort(f"r{number}")
            case _:
                if engine.reset_prefix_cache():
                    assert naive.pool.reset(naive.usable)
                    naive.events.append(("cleared", ()))
    steps = 0
    while step():
        steps += 1
        assert steps < 5000, "the engine makes no progress"
    assert engine.pool.active_blocks == 0
    found = {name: request.cached_tokens for name, request in fast.items()}
    assert found == {name: request.cached or 0 for name, request in slow.items()}
