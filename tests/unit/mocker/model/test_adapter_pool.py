import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.adapter_pool import AdapterPool
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, Labels
from kvmesh_lab.mocker.model.timing import PROFILES


def test_an_adapter_is_loaded_once_while_it_is_held() -> None:
    pool = AdapterPool(2, 0.5)

    for name in ("x", "y", "x", "x"):
        pool.enter(name)
        pool.leave(name)

    assert (pool.loads, pool.take_loading_s(), pool.take_loading_s()) == (2, 1.0, 0.0)


def test_the_adapter_unused_longest_that_nobody_uses_makes_room() -> None:
    pool = AdapterPool(2, 0.5)
    pool.enter("x")
    pool.enter("y")
    pool.leave("y")

    pool.enter("z")
    pool.leave("z")
    pool.leave("x")
    pool.enter("x")
    pool.enter("y")

    assert pool.loads == 4
    assert dict(pool.running) == {"x": 1, "y": 1}


def test_no_more_adapters_run_at_a_time_than_there_are_slots() -> None:
    pool = AdapterPool(1, 0.5)
    pool.enter("x")
    pool.enter("x")
    pool.leave("x")

    assert pool.has_room("x")
    assert pool.has_room(None)
    assert not pool.has_room("y")

    pool.leave("x")
    assert pool.has_room("y")


def test_without_slots_and_without_an_adapter_nothing_is_loaded() -> None:
    free, pool = AdapterPool(0, 0.5), AdapterPool(1, 0.5)
    for each, name in ((free, "x"), (free, "y"), (pool, None)):
        assert each.has_room(name)
        each.enter(name)
        each.leave(name)

    assert free.take_loading_s() == pool.take_loading_s() == 0.0
    assert not free.running


def test_a_load_lengthens_the_step_that_begins_its_request() -> None:
    options = EngineOptions(
        timing=PROFILES["instant"], max_loras=1, lora_load_ms=500.0, speedup_ratio=2.0
    )
    engine = EngineModel(options)
    for number, name in enumerate(("x", "x", "y", None)):
        labels = Labels(lora_name=name)
        engine.add(EngineRequest(f"{number}", (), 20, 1, labels=labels), 0.0)

    steps = [engine.step(float(now)) for now in range(3)]

    reported = [
        ([one.request_id for one in step.started], step.duration_s) for step in steps if step
    ]
    assert reported == [(["0", "1"], 0.25), (["2", "3"], 0.25)]
    assert engine.statistics().running_adapters == ()


def test_what_no_engine_can_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_loras is -1"):
        EngineOptions(max_loras=-1)
    with pytest.raises(ConfigError, match="lora_load_ms is -1"):
        EngineOptions(lora_load_ms=-1.0)
