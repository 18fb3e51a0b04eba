from math import inf
from pathlib import Path

import msgspec
import pytest

from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan.judge import Errors, Judge, Load, quantile
from kvmesh_lab.plan.kinds import Kind
from kvmesh_lab.plan.targets import parse_targets
from kvmesh_lab.plan.workload import Workload, read_workload
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.simulator.fleet.options import FleetOptions
from tests.unit.plan.test_workload import BLOCK, write_log
from tests.unit.simulator.test_command import write_trace

SLOW = EngineOptions(block_size=64, num_gpu_blocks=2000, speedup_ratio=0.2)


def judge(workload: Workload, slo: str, load: Load | None = None, block: int = 64) -> Judge:
    engine = msgspec.structs.replace(SLOW, block_size=block)
    kinds = (Kind("slow", engine), Kind("quick", msgspec.structs.replace(engine, speedup_ratio=1)))
    targets = parse_targets(slo)
    policy = parse_policy("kv", block)
    return Judge(workload, kinds, FleetOptions(), policy, targets, load or Load())


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    return read_workload(ReplayOptions(write_trace(tmp_path, 120)))


def test_more_and_quicker_engines_answer_sooner(workload: Workload) -> None:
    one = judge(workload, "ttft=500ms,tpot=40ms")

    times = [one.verdicts(mix)[0].ms for mix in ((1, 0), (3, 0), (0, 1))]

    assert times[0] > times[1] > times[2]
    assert not one.holds((1, 0))
    assert one.holds((0, 2))
    run = one.runs((0, 2))[0]
    assert run.times["ttft"][0] <= run.times["ttft"][1] <= run.times["ttft"][2]
    assert 0.0 < run.busy <= 1.0
    assert 0.0 < run.hit_rate < 1.0
    assert run.failed == 0


def test_a_hopeless_play_ends_early_and_is_played_whole_when_asked(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh_lab.plan.judge.EVENTS", 1)
    one = judge(workload, "ttft=1ms")

    assert not one.holds((1, 0))
    assert one.plays == 1
    verdict = one.verdicts((1, 0))[0]
    assert one.plays == 1 + Load().seeds
    assert 1.0 < verdict.low_ms < verdict.ms < verdict.high_ms < inf


def test_a_play_far_from_the_limit_is_enough(workload: Workload) -> None:
    one = judge(workload, "ttft=1000s")
    heard: list[tuple[int, ...]] = []
    one.watch = heard.append

    assert one.holds((2, 0))
    assert heard == [(2, 0)]
    assert one.holds((2, 0), surely=True)
    assert len(heard) == Load().seeds


def test_what_checks_showed_corrects_the_time_and_widens_the_bar(workload: Workload) -> None:
    one = judge(workload, "ttft=10s")
    before = one.verdicts((2, 0))[0]
    one.errors = Errors({"ttft": 2.0}, {"ttft": 0.5})

    after = one.verdicts((2, 0))[0]

    assert after.ms == pytest.approx(2.0 * before.ms)
    assert after.high_ms / after.ms > before.high_ms / before.ms
    assert after.high_ms / after.ms == pytest.approx(after.ms / after.low_ms)
    assert (after.holds, msgspec.structs.replace(after, high_ms=20_000.0).surely) == (True, False)


def test_a_load_that_grows_needs_more(workload: Workload) -> None:
    usual, twice = (judge(workload, "ttft=1s", Load(growth)) for growth in (1.0, 3.0))

    assert twice.verdicts((2, 0))[0].ms > usual.verdicts((2, 0))[0].ms


def test_prompts_that_no_engine_takes_are_missed_targets(workload: Workload) -> None:
    small = msgspec.structs.replace(SLOW, num_gpu_blocks=4)
    one = Judge(
        workload, (Kind("small", small),), FleetOptions(), parse_policy("kv", 64),
        parse_targets("ttft=9s"), Load(),
    )  # fmt: skip

    assert one.verdicts((1,))[0].ms == inf
    assert not one.holds((1,))
    assert one.runs((1,))[0].failed == len(one.counted)


def test_a_logs_caches_are_as_they_were(tmp_path: Path) -> None:
    known = read_workload(ReplayOptions(write_log(tmp_path)))
    first = msgspec.structs.replace(known.went[0], cached_tokens=0)
    unknown = msgspec.structs.replace(known, went={0: first})

    warm, cold = (judge(one, "ttft=1s", block=BLOCK).runs((1, 0))[0] for one in (known, unknown))

    assert warm.hit_rate > cold.hit_rate
    assert 0.0 < warm.busy <= 1.0


def test_quantiles_know_of_requests_that_got_no_answer() -> None:
    assert quantile([], 0.9) == 0.0
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, inf], 0.9) == inf
    assert quantile([1.0, 2.0, inf], 0.4) == pytest.approx(1.8)
