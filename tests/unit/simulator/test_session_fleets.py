"""Sessions on fleets of every kind that `kvmesh simulate` knows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmesh_lab.simulator.options import SimulateOptions
from tests.unit.simulator.test_command import run, write_sessions


def summary(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Play eight sessions on two engines with room for few of them; the one run's summary."""
    options = SimulateOptions(
        write_sessions(tmp_path, 8),
        engines=2,
        block_size=128,
        blocks=48,
        live=(4,),
        policy=("kv",),
        timing_profile="preble-70b",
        json=tmp_path / "out.json",
    )
    run(replace(options, **changes))
    (one,) = json.loads((tmp_path / "out.json").read_bytes())["runs"]
    found: dict[str, Any] = one["summary"]
    return found


def test_host_memory_saves_sessions_what_they_would_compute_again(tmp_path: Path) -> None:
    plain = summary(tmp_path)
    tiered = summary(tmp_path, host_blocks=1024)

    assert plain["programs"]["finished"] == tiered["programs"]["finished"] == 8
    assert plain["programs"]["prefill_ratio"] > 1.2
    assert tiered["programs"]["prefill_ratio"] < 1.05


def test_sessions_are_served_where_one_engine_prefills_for_the_other(tmp_path: Path) -> None:
    found = summary(tmp_path, blocks=480, prefill_engines=1, split_share=1.0)

    assert found["programs"]["finished"] == 8
    assert found["succeeded"] == 40


def test_every_request_may_ask_for_the_slo_and_is_refused_where_nothing_meets_it(
    tmp_path: Path,
) -> None:
    easy = summary(tmp_path, tell_targets=True, slo_ttft_ms=60_000.0)
    never = summary(tmp_path, tell_targets=True, slo_ttft_ms=1.0, slo_itl_ms=1.0)

    assert easy["succeeded"] == 40
    assert never["succeeded"] < 40


@pytest.mark.parametrize("reported", [False, True])
def test_programs_take_turns_and_engines_are_reminded(tmp_path: Path, *, reported: bool) -> None:
    found = summary(
        tmp_path,
        program_turns=("on",),
        re_touch=True,
        tell_final=reported,
        tell_output_lengths=reported,
    )

    assert found["programs"]["finished"] == 8
    assert found["programs"]["wait_s_max"] <= 201.0


def test_a_shorter_time_scale_shortens_programs_and_nothing_else(tmp_path: Path) -> None:
    plain = summary(tmp_path, blocks=960)
    scaled = summary(tmp_path, blocks=960, time_scale=0.5)

    longer, shorter = (one["programs"]["completion_s"]["p50"] for one in (plain, scaled))
    assert longer == pytest.approx(240.0, rel=0.05)
    assert shorter == pytest.approx(120.0, rel=0.05)
    assert plain["hit_rate"] == pytest.approx(scaled["hit_rate"], abs=0.1)
