import pytest

from kvmesh.errors import RequestError
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksStored,
    CacheCleared,
    EngineEvent,
    EngineRequest,
    OpaqueContent,
    Step,
)
from kvmesh_lab.mocker.model.timing import PROFILES


def engine(blocks: int = 100, **changes: int) -> EngineModel:
    return EngineModel(
        EngineOptions(
            block_size=changes.get("block_size", 4),
            num_gpu_blocks=blocks,
            max_num_seqs=changes.get("max_num_seqs", 8),
            max_num_batched_tokens=changes.get("max_num_batched_tokens", 64),
            enable_prefix_caching=bool(changes.get("enable_prefix_caching", 1)),
            timing=PROFILES["linear"],
        )
    )


def request(name: str, hashes: list[int], prompt: int, output: int = 1) -> EngineRequest:
    return EngineRequest(name, hashes, prompt, output)


def next_step(model: EngineModel) -> Step:
    step = model.step(0.0)
    assert step is not None
    return step


def run(model: EngineModel) -> list[EngineEvent]:
    """Run until idle, return all events."""
    events: list[EngineEvent] = []
    while (step := model.step(0.0)) is not None:
        events += step.events
    return events


def stored(events: list[EngineEvent]) -> list[list[int]]:
    return [event.hashes for event in events if isinstance(event, BlocksStored)]


def test_reused_blocks_are_told_again_when_the_request_asks_for_it() -> None:
    model = engine()
    model.add(request("a", [1, 2], prompt=9), 0.0)
    run(model)
    again = request("b", [1, 2], prompt=9)
    again.report_cached = True
    model.add(again, 0.0)

    assert stored(run(model)) == [[1, 2]]
    assert sorted(model.pool.hashes()) == [1, 2]


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    model = engine(max_num_seqs=2)
    for name in "abc":
        model.add(request(name, [], prompt=3, output=2), 0.0)

    assert len(next_step(model).produced) == 2
    assert model.statistics().waiting_requests == 1
    next_step(model)
    assert [request.request_id for request in next_step(model).started] == ["c"]


def test_a_half_computed_prompt_is_preempted_by_decoding_requests() -> None:
    model = engine(blocks=8, max_num_batched_tokens=8)
    model.add(request("a", [], prompt=3, output=20), 0.0)
    next_step(model)
    waiting = request("b", [], prompt=24, output=1)
    model.add(waiting, 0.0)
    preempted: list[EngineRequest] = []
    while not preempted:
        preempted = next_step(model).preempted

    assert preempted == [waiting]
    assert waiting.generated == 0
    run(model)
    assert waiting.generated == 1


def test_an_abort_frees_blocks_at_once_wherever_the_request_is() -> None:
    model = engine(max_num_batched_tokens=8)
    model.add(request("decoding", [], prompt=3, output=9), 0.0)
    next_step(model)
    model.add(request("prefilling", [], prompt=30, output=9), 0.0)
    next_step(model)
    model.add(request("queued", [], prompt=3, output=9), 0.0)

    assert all(model.abort(name) for name in ("queued", "prefilling", "decoding"))

    assert model.pool.active_blocks == 0
    assert not model.abort("decoding")
    assert model.step(0.0) is None


def test_an_abort_in_a_requests_last_step_is_harmless() -> None:
    model = engine()
    model.add(request("a", [], prompt=3), 0.0)
    assert next_step(model).finished

    assert model.abort("a")

    assert model.step(0.0) is None
    assert model.pool.active_blocks == 0


def test_the_cache_is_reset_only_when_idle_and_told_with_the_next_step() -> None:
    model = engine()
    model.add(request("a", [1], prompt=5), 0.0)
    next_step(model)
    assert not model.reset_prefix_cache()
    run(model)

    assert model.reset_prefix_cache()

    model.add(request("b", [1], prompt=5), 0.0)
    events = run(model)
    assert events[0] == CacheCleared()
    assert stored(events) == [[1]]


def test_what_can_never_fit_or_is_there_already_is_refused() -> None:
    model = engine(blocks=3)
    model.add(request("a", [], prompt=7, output=1), 0.0)

    for bad, message in (
        (request("b", [], prompt=8, output=1), "more than the KV cache holds"),
        (request("c", [], prompt=0, output=1), "need a token"),
        (request("d", [], prompt=1, output=0), "need a token"),
        (request("a", [], prompt=1, output=1), "in use"),
    ):
        with pytest.raises(RequestError, match=message):
            model.add(bad, 0.0)


def test_statistics_count_what_happened() -> None:
    model = engine()
    model.add(request("a", [1, 2], prompt=10, output=3), 0.0)
    next_step(model)

    statistics = model.statistics()

    assert statistics.running_requests == 1
    assert statistics.active_blocks == 3
    assert statistics.kv_cache_usage == pytest.approx(3 / 99)
    assert (statistics.prefilled_tokens, statistics.generated_tokens) == (10, 1)


def test_a_request_may_bring_its_own_content() -> None:
    content = OpaqueContent(5)

    assert EngineRequest("a", [], 1, 1, content).content is content


def test_answers_without_tokens_get_hashes_that_depend_on_prompt_and_request() -> None:
    one, two = OpaqueContent(1), OpaqueContent(2)

    assert one.block_hash(3, 77) == OpaqueContent(1).block_hash(3, 77)
    assert len({one.block_hash(3, 77), two.block_hash(3, 77), one.block_hash(3, 78)}) == 3
    assert one.block_tokens(0, 3) == ()
    assert len(request("x", [], 1).ensure_hashes(3)) == 3


def test_without_prefix_caching_nothing_is_stored_or_reused() -> None:
    model = engine(enable_prefix_caching=0)
    model.add(request("a", [1, 2], prompt=9, output=9), 0.0)
    model.add(request("b", [1, 2], prompt=9), 0.0)

    assert run(model) == []
    assert model.statistics().prefix_cache_hits == 0
    assert model.pool.free_blocks == 99
