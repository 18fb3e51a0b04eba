import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.checks import check_simulation
from kvmesh_lab.simulator.command import simulate
from kvmesh_lab.simulator.comparison import Cell
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.table import print_comparison
from tests.unit.simulator.fleet.fleet_cases import families

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "my_cost.py") + ":my_cost"


def write_trace(path: Path, count: int = 40) -> Path:
    lines = [
        {
            "timestamp": one.timestamp_ms,
            "input_length": one.input_tokens,
            "output_length": min(8, one.output_tokens),
            "hash_ids": list(one.block_ids),
        }
        for one in families(count, gap_ms=25.0)
    ]
    file = path / "small_b64.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def run(options: SimulateOptions, *, terminal: bool = False) -> tuple[str, str]:
    """Simulate; return what was printed and what the progress bar drew."""
    out, shown = StringIO(), StringIO()
    simulate(
        options,
        Console(file=out, width=200),
        Console(file=shown, width=160, force_terminal=terminal),
    )
    return out.getvalue(), shown.getvalue()


def test_policies_are_printed_side_by_side_for_every_load(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path), engines=2, load=(0.5, 0.8), policy=("round-robin", "kv")
    )

    out, shown = run(options)

    assert out.count("load 0.5") >= 1
    assert out.count("load 0.8") >= 1
    assert "all settings: geometric mean against round-robin" in out
    assert "one infinite cache would hit" in out
    assert "TTFT alone on an idle engine that has it: p50" in out
    assert "\n" not in shown.strip()
    assert "requests/s of processor time" in shown


def test_a_table_is_whole_in_80_columns() -> None:
    names = (
        "round-robin",
        "kv:overlap-usage-waiting",
        "kv:predicted-time:contention=0.4:followers=1",
    )
    cells = [
        Cell(f"load {load} (123.45/s)", name, 123_456, 234_567, 345_678, 1234.5, 1.0, 12.34, 0.45)
        for load in (0.5, 0.9)
        for name in names
    ]
    out = StringIO()

    print_comparison(cells, Console(file=out, width=80))

    assert "…" not in out.getvalue()
    whole = "123,456 234,567 x1.00 345,678 1,234.5 100.0% 12.34   0.45"
    assert out.getvalue().count(whole) == len(cells)
    assert out.getvalue().count("100.0% 12.34   0.45") == len(cells) + len(names)


def test_a_table_with_lost_and_retried_requests_is_whole_in_80_columns_too() -> None:
    numbers = (123_456, 234_567, 345_678, 1234.5, 1.0, 12.34, 0.45, 12_345, 23_456)
    cells = [Cell(f"load {load}", "kv:predicted-time", *numbers) for load in (0.5, 0.9)]
    out = StringIO()

    print_comparison(cells, Console(file=out, width=80), faulty=True)

    assert "…" not in out.getvalue()
    whole = "123,456 234,567 x1.00 345,678 1,234.5 100.0% 12.34   0.45 12,345 23,456"
    assert out.getvalue().count(whole) == len(cells)
    assert out.getvalue().count("100.0% 12.34   0.45 24,690 46,912") == 1


def test_faults_are_told_and_what_they_cost_is_shown(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path),
        engines=2,
        load=(0.5,),
        policy=("round-robin",),
        fail=("w0=1:503=2", "1=0.2:cut"),
        flap="0.001:1000",
        json=tmp_path / "out.json",
    )

    out, _ = run(options)
    (summary,) = (
        one["summary"] for one in json.loads((tmp_path / "out.json").read_bytes())["runs"]
    )

    assert "faults     w0=1:503=2 1=0.2:cut, flapping 0.001:1000 s; up to 2 retries" in out
    assert "lost" in out
    assert summary["errors"]["cut"] == 40 - summary["succeeded"] > 0
    healthy, _ = run(replace(options, fail=(), flap=""))
    assert "lost" not in healthy
    assert "faults  " not in healthy
    settings = [text.split("load 0.5")[1].split(";")[0] for text in (out, healthy)]
    assert settings[0] == settings[1], "relative loads are those of a healthy fleet"


def test_progress_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path), engines=2, load=(0.5,), policy=("round-robin",)
    )

    _, shown = run(options, terminal=True)

    assert "finding saturation" in shown
    assert "40/40" in shown


def test_files_of_several_loads_have_all_runs_or_are_numbered(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path),
        engines=2,
        rate=(10.0, 30.0),
        policy=("round-robin", "kv:lmetric"),
        json=tmp_path / "out.json",
        csv=tmp_path / "out.csv",
        plot=tmp_path / "out.svg",
    )

    out, _ = run(options)

    names = [one["name"] for one in json.loads((tmp_path / "out.json").read_bytes())["runs"]]
    assert names == [
        f"{policy} @ {rate} requests/s"
        for rate in (10, 30)
        for policy in ("round-robin", "kv:lmetric")
    ]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 4 * 40
    assert (tmp_path / "out-1.svg").exists()
    assert (tmp_path / "out-2.svg").read_text().startswith("<?xml")
    assert "all settings" in out


def test_one_load_needs_no_numbers_and_details_show_every_worker(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path),
        engines=2,
        rate=(20.0,),
        policy=("kv",),
        details=True,
        engine_speeds=(1.0, 0.5),
        html=tmp_path / "out.html",
    )

    out, _ = run(options)

    assert "<h1>kvmesh simulate</h1>" in (tmp_path / "out.html").read_text()
    assert "who served: kv" in out
    assert "speeds (1.0, 0.5)" in out
    assert "all settings" not in out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": (0.5, 0.0)}, "--load 0.0"),
        ({"rate": (-1.0,)}, "--rate -1"),
        ({"load": ()}, "at least one"),
        ({"policy": ()}, "at least one"),
        ({"policy": ("kv", "kv")}, "each policy once"),
        ({"policy": ("kv:nothing",)}, "nothing"),
        ({"engines": 0}, "engines"),
        ({"blocks": -4}, "--num-gpu-blocks"),
        ({"skip": -1}, "--skip"),
        ({"timing_profile": "fast"}, "timing profile"),
        ({"plot": Path("x.txt")}, "--plot"),
        ({"fail": ("8=0.5:500",)}, "--fail 8=0.5:500: write WHO"),
        ({"fail": ("all=0.5:500", "7=0.6:cut")}, "--fail of engine 7: the shares sum up"),
        ({"flap": "2:nan"}, "--flap 2:nan"),
        ({"retries": -1}, "retries is -1"),
        ({"prefill_engines": 8}, "prefillers is 8 of 8 engines"),
        ({"prefill_engines": 1, "policy": ("oracle",)}, "oracle knows no --prefill-engines"),
        ({"client_timeout_ms": float("nan")}, "--client-timeout-ms nan"),
        ({"json": Path("/nowhere/x.json")}, "does not exist"),
        ({"program_turns": ("maybe",)}, "--program-turns maybe"),
        ({"program_turns": ()}, "--program-turns "),
        ({"program_turns": ("on", "on")}, "--program-turns on,on"),
        ({"capacity_share": 0.0}, "--capacity-share 0.0"),
        ({"live": (0.0,)}, "--live 0.0"),
        ({"sessions": 0}, "--sessions 0"),
        ({"time_scale": -1.0}, "--time-scale -1"),
        ({"model_profile": "7b"}, "--model-profile '7b'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_flag(changes: dict[str, object], words: str) -> None:
    options = SimulateOptions(Path("trace.jsonl"), **changes)  # type: ignore[arg-type]  # wrong on purpose

    with pytest.raises(ConfigError, match=words):
        check_simulation(options)


def test_engine_blocks_that_do_not_divide_the_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not divide"):
        run(SimulateOptions(write_trace(tmp_path), block_size=48))


def test_weights_are_searched_on_one_part_and_compared_on_the_other(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path),
        engines=2,
        load=(0.7,),
        policy=("round-robin",),
        tune="prefill-decode",
        train_share=0.6,
    )

    out, shown = run(options)

    assert "tuned      prefill-decode on 24 requests" in out
    assert "16 requests after the first 0" in out
    assert "kv:prefill-decode:overlap_score_weight=" in out
    assert "requests/s of processor time" in shown


def test_a_formula_of_a_file_is_played_and_its_weights_are_searched(tmp_path: Path) -> None:
    mine = f"kv:{EXAMPLE}"
    options = SimulateOptions(
        write_trace(tmp_path),
        engines=2,
        load=(0.7,),
        policy=("round-robin", mine, f"{mine}:per_request=0"),
        tune=EXAMPLE,
    )

    out, _ = run(options)

    assert "tuned" in out
    assert ":hit=" in out
    assert ":crowd=" in out
    assert "warning" not in out
    with pytest.raises(ConfigError, match=r"'luck' is none of temperature.*my_cost.py:my_cost, wh"):
        run(replace(options, policy=(f"{mine}:luck=1",)))
    with pytest.raises(ConfigError, match="name a formula alone, without weights"):
        run(replace(options, tune=f"{EXAMPLE}:hit=1"))
    with pytest.raises(ConfigError, match="hit_minus_load' has no weights to tune"):
        run(
            replace(
                options, tune=EXAMPLE.replace("my_cost.py:my_cost", "my_cost.py:hit_minus_load")
            )
        )


def test_a_formula_that_failed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "moody.py"
    file.write_text("def moody(c, f):\n    return 1 / (c.prompt_tokens in (0, 1, 1600, 10**7))\n")
    options = SimulateOptions(
        write_trace(tmp_path), engines=2, load=(0.5,), policy=("kv", f"kv:{file}:moody")
    )

    out, _ = run(options)

    assert "warning: moody.py:moody failed in 5 of 5 decisions (ZeroDivisionError" in out
    assert "and was switched off; predicted-time decided" in out


@pytest.mark.parametrize(
    ("tune", "share", "words"),
    [
        ("lmetric", 0.5, "no weights to tune"),
        ("preble", 1.0, "--train-share 1.0"),
        ("preble", 0.001, "cannot be split"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    tmp_path: Path, tune: str, share: float, words: str
) -> None:
    options = SimulateOptions(write_trace(tmp_path), load=(0.5,), tune=tune, train_share=share)

    with pytest.raises(ConfigError, match=words):
        run(options)


def write_sessions(path: Path, count: int = 3) -> Path:
    lines = [
        {
            "session": number,
            "common": 128,
            "turns": [
                [60.0, 512 * (turn + 1), 8, 512 * turn, 1.0, "tool_use"] for turn in range(5)
            ],
        }
        for number in range(count)
    ]
    file = path / "sessions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_sessions_are_played_in_closed_loop_and_their_programs_reported(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_sessions(tmp_path),
        engines=2,
        live=(1,),
        sessions=4,
        policy=("round-robin", "kv"),
        json=tmp_path / "out.json",
        csv=tmp_path / "out.csv",
    )

    out, _ = run(options)
    runs = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_bytes())["runs"]}
    programs = runs["kv"]["summary"]["programs"]

    assert "1 live sessions an engine: programs; times in s" in out
    assert "4/4" in out
    assert (programs["programs"], programs["finished"], programs["turns"]) == (4, 4, 20)
    assert programs["completion_s"]["p50"] == pytest.approx(240.0, abs=5.0), "pauses as recorded"
    assert programs["prefill_ratio"] == pytest.approx(1.0, abs=0.05)
    assert runs["round-robin"]["summary"]["programs"]["prefill_ratio"] > 1.2
    assert {row["program"] for row in runs["kv"]["requests"]} == {"0", "1", "2", "0#2"}
    head, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert {"program", "held_ms"} <= set(head.split(","))
    assert len(rows) == 2 * 20


def test_sessions_are_played_at_eight_an_engine_unless_told_otherwise(tmp_path: Path) -> None:
    options = SimulateOptions(write_sessions(tmp_path), engines=1, policy=("kv",))

    out, _ = run(options)
    scaled, _ = run(replace(options, time_scale=0.01, live=(3,)))
    open_loop, _ = run(replace(options, rate=(1.0,)))

    assert "8 live sessions an engine: programs" in out
    assert "3 live sessions an engine: programs" in scaled
    assert "1 requests/s" in open_loop
    by_load, _ = run(replace(options, load=(0.9,)))
    assert "load 0.9 (" in by_load


def test_requests_that_no_engine_takes_are_told(tmp_path: Path) -> None:
    options = SimulateOptions(write_sessions(tmp_path), engines=1, blocks=3, policy=("kv",))

    out, _ = run(options)

    assert "warning: 12 of 15 requests got no answer" in out
    assert "--max-input-tokens cuts prompts" in out
