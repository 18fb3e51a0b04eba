"""The search for the largest load that keeps an SLO."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvmesh_lab.simulator.capacity import largest_count
from kvmesh_lab.simulator.command import simulate
from kvmesh_lab.simulator.options import SimulateOptions
from tests.unit.simulator.test_command import run, write_sessions, write_trace


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 200))
def test_the_largest_number_that_keeps_is_found(limit: int, start: int, most: int) -> None:
    assert largest_count(lambda one: one <= limit, start, most) == min(limit, most)


def test_a_fleet_twice_as_large_bears_about_twice_as_much(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path, 120),
        engines=1,
        policy=("round-robin",),
        capacity=True,
        requests=600,
        slo_ttft_ms=400.0,
        json=tmp_path / "out.json",
    )

    one = search(options)
    two = search(replace(options, engines=2))

    assert 1.5 * one < two < 2.6 * one
    out, _ = run(options)
    assert "capacity, requests/s: 90% of all requests within SLO" in out
    assert "of them 480 repeated with fresh prompts" in out
    assert (tmp_path / "out.json").exists()


def search(options: SimulateOptions) -> float:
    console = Console(file=StringIO())
    (found,) = simulate(options, console, console).capacities
    assert found.run is not None
    assert found.run.summary.goodput_share >= 0.9
    return found.load


def test_an_slo_that_nothing_keeps_is_a_capacity_of_nothing(tmp_path: Path) -> None:
    options = SimulateOptions(
        write_trace(tmp_path), engines=1, policy=("kv",), capacity=True, requests=40
    )

    out, _ = run(replace(options, slo_ttft_ms=0.001))
    sessions = replace(options, trace=write_sessions(tmp_path), requests=None)
    closed, _ = run(replace(sessions, slo_ttft_ms=0.001))
    easy, _ = run(replace(sessions, slo_ttft_ms=1e6, slo_itl_ms=1e6, engines=3))

    assert "kv            0 x1.00" in out
    assert "capacity, live sessions an engine" in closed
    assert "kv            0 x1.00" in closed
    assert "kv            1 x1.00 100.0%" in easy, "three programs on three engines are all"


@pytest.mark.parametrize("turns", [("on",), ("off", "on")])
def test_programs_take_turns_under_policies_that_know_caches(
    tmp_path: Path, turns: tuple[str, ...]
) -> None:
    options = SimulateOptions(
        write_sessions(tmp_path, 6),
        engines=1,
        blocks=8,
        policy=("round-robin", "kv"),
        program_turns=turns,
    )

    out, _ = run(options)

    assert "kv+turns" in out
    assert "round-robin+turns" not in out
    assert ("\n kv  " in out) == ("off" in turns)
