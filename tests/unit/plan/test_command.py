import json
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from kvmesh.errors import ConfigError
from kvmesh_lab.plan.command import plan
from kvmesh_lab.plan.options import PlanOptions
from kvmesh_lab.plan.record import FleetPlan, errors_of, read_plan
from tests.unit.plan.test_workload import FACTS, FLEET, write_log
from tests.unit.simulator.test_command import write_trace

SLOW = "preble-70b,decode_base=40"


def run(log: Path, slo: str = "", **changes: object) -> tuple[FleetPlan, str]:
    """Plan or check; return the plan and what was printed."""
    out = StringIO()
    options = PlanOptions(log, slo=slo, **changes)  # type: ignore[arg-type]
    console = Console(file=StringIO())
    return plan(options, Console(file=out, width=200), console), out.getvalue()


def test_a_trace_needs_engines_and_one_fewer_breaks_a_target(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, 160)

    found, out = run(trace, "ttft=800ms,p50:e2e=9s", timing_profile=SLOW, load=2.0)

    count = found.answer["engines"]
    assert count > 1
    assert [row.engines["engines"] for row in found.rows][:3] == [count - 1, count, count + 1]
    assert [row.holds for row in found.rows][:3] == [False, True, True]
    assert sum(found.sure.values()) >= count
    assert f"Enough: {count} engines." in out
    assert f"One fewer: with {count - 1} engines TTFT p90 is" in out
    assert "The error bar is assumed (15 %)" in out
    assert ", 2 times its load: TTFT p90 800 ms, e2e p50 9 s" in out


def test_a_plan_is_printed_as_json_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "plan.json"

    found, out = run(write_trace(tmp_path, 60), "ttft=2s", save=kept, json=True, seeds=1)

    assert out == ""
    assert msgspec.convert(json.loads(capsys.readouterr().out), FleetPlan) == found
    assert read_plan(kept, "--save") == found


def test_a_target_that_nothing_holds_is_told(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, 60)

    found, out = run(trace, "tpot=1ms", most=2, seeds=1)
    with pytest.raises(ConfigError, match="no number of engines holds it"):
        run(trace, "ttft=2ms")

    assert (found.answer, found.sure, len(found.rows)) == ({}, {}, 1)
    assert "Nothing holds the targets, up to 2 engines (--most allows more)." in out


def test_the_cheapest_mix_is_found_by_price(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        "[big]\nprice = 10\nprofile = '8b-1xh100'\nspeed = 0.4\nmost = 6\n"
        "[small]\nprice = 2\nprofile = '8b-1xh100'\nspeed = 0.2\nmost = 6\n"
    )

    found, out = run(write_trace(tmp_path, 160), "ttft=600ms", prices=prices, load=2.0, seeds=2)

    assert found.answer.get("small", 0) > 0
    assert "an hour" in out
    cheaper = [row for row in found.rows if row.price < 2 * found.answer["small"]]
    assert not any(row.holds for row in cheaper)


def test_a_day_that_was_slower_corrects_the_next_plan(tmp_path: Path) -> None:
    log, kept = write_log(tmp_path), tmp_path / "plan.json"
    before, out = run(log, "ttft=1s,tpot=80ms", save=kept)
    assert [kind.name for kind in before.kinds] == ["learned"]
    assert before.policy == "kv:predicted-time"

    same, _ = run(log, check=kept)
    (tmp_path / "later").mkdir()
    later = write_log(tmp_path / "later")
    text = later.read_bytes().replace(b'"ttft_ms":240.0', b'"ttft_ms":480.0')
    later.write_bytes(text.replace(b'"tpot_ms":40.0', b'"tpot_ms":60.0'))
    checked, out = run(later, check=kept)

    (check,) = checked.checks
    assert (check.engines, check.load) == (2, 1.0)
    first = same.checks[0].ratios
    assert check.ratios["ttft"] == pytest.approx(2.0 * first["ttft"])
    assert check.ratios["tpot"] == pytest.approx(1.5 * first["tpot"])
    assert "2 engines, 1.00 times the load that was planned for" in out
    assert "TTFT p90" in out
    assert read_plan(kept, "--check").checks == [check]

    after, out = run(log, "ttft=1s,tpot=80ms", save=kept)
    assert after.checks == [check]
    assert "Corrected by 1 check, happened / simulated: ttft x" in out
    told = {str(row.engines): row.foretold[0].ms or 0.0 for row in before.rows}
    factor = errors_of(after.checks).factor["ttft"]
    for row in after.rows:
        if str(row.engines) in told:
            assert row.foretold[0].ms == pytest.approx(factor * told[str(row.engines)], rel=1e-5)


def test_a_check_is_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, kept = write_log(tmp_path), tmp_path / "plan.json"
    run(log, "ttft=9s", save=kept, seeds=1)

    run(log, check=kept, json=True)

    assert json.loads(capsys.readouterr().out)["engines"] == 2


def test_a_check_needs_a_log(tmp_path: Path) -> None:
    trace, kept = write_trace(tmp_path, 60), tmp_path / "plan.json"
    run(trace, "ttft=9s", save=kept, seeds=1)

    with pytest.raises(ConfigError, match="--check needs a log"):
        run(trace, check=kept)


def test_an_engine_of_a_profile_takes_the_place_of_the_learned_one(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(FACTS, replicas=2, kv_events=False, max_backlog_ms=200.0)
    log = write_log(tmp_path, msgspec.structs.replace(FLEET, fleet=facts))

    found, _ = run(log, "ttft=9s", model_profile="70b-2xh100", policy="round-robin", seeds=1)
    small, _ = run(log, "ttft=9s", blocks=100, seeds=1)

    assert [kind.name for kind in found.kinds] == ["engines"]
    assert (found.policy, found.routers, found.kv_events) == ("round-robin", 2, False)
    assert found.max_backlog_ms == 200.0
    assert small.kinds[0].engine.num_gpu_blocks == 100


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slo": ""}, "name the targets"),
        ({"load": 0.0}, "--load 0.0: must be more than 0"),
        ({"load": float("nan")}, "--load nan"),
        ({"most": 10**25}, "--most .*less than a billion"),
        ({"most": 5000}, "--most 5000: at most 1024"),
        ({"seeds": 21}, "--seeds 21: at most 20"),
        ({"live": -1}, "--live -1"),
        ({"policy": "kvv"}, "none of kv"),
        ({"model_profile": "h200"}, "none of 8b-1xh100"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(write_trace(tmp_path, 60), **{"slo": "ttft=1s", **changes})  # type: ignore[arg-type]
