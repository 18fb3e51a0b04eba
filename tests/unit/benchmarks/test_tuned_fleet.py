"""The whole tuner in virtual time, in small: `benchmarks.quality.bench_tuner` has it in large."""

import pytest

from benchmarks.quality.phases import BLOCK, PHASES, join
from benchmarks.quality.tuned_fleet import TunedFleet
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_loop import LoopOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests

FLEET = FleetOptions(engines=2, engine=EngineOptions(block_size=BLOCK, num_gpu_blocks=2048))
OPTIONS = LoopOptions(
    tuner=TunerOptions(
        apply=True,
        least_requests=200,
        observe_s=10.0,
        shadow_s=5.0,
        shadow_decisions=50,
        min_gain=0.01,
        pause_s=5.0,
    ),
    trial_requests=20,
    search_requests=200,
)


@pytest.mark.nightly
def test_a_load_that_changes_is_searched_anew_and_never_keeps_weights_of_another() -> None:
    requests = join([PHASES["prefill-heavy"](1400, 11.0, 4), PHASES["decode-heavy"](1500, 25.0, 4)])
    fleet = TunedFleet(
        FLEET, "kv:prefill-decode", make_requests(requests, BLOCK, BLOCK), OPTIONS, lambda _: None
    )

    outcomes = fleet.run()

    steps = fleet.tuner.status().steps
    kinds = [step.kind for step in steps]
    assert len(outcomes) == len(requests)
    assert "searches" in kinds
    drift = next(place for place, step in enumerate(steps) if "output tokens" in step.text
                 and step.kind == "drifted")  # fmt: skip
    assert kinds[0] == "searches"
    assert "searches" in kinds[drift:]
    tried = [step for step in steps if step.kind == "tries"]
    ended = [step for step in steps if step.kind in ("kept", "returned", "drifted")]
    running = steps[-1].kind == "tries"
    assert len(ended) >= len(tried) - running
