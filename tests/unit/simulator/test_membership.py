"""What the table says of engines that join and leave: figures counted by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.checks import check_simulation
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.membership import JOIN_HEAD, LEAVE_HEAD, JoinSums, changes_of, leave_cells
from kvmesh_lab.simulator.options import SimulateOptions
from tests.unit.simulator.fleet.test_joining import JOIN_S, joined
from tests.unit.simulator.test_command import run, write_trace

DASHES = ("-",)


def outcome(
    sent_s: float, cached: int, *, ttft_ms: float | None = 10.0, worker: str = "worker-0"
) -> RequestOutcome:
    return RequestOutcome(
        index=0, session="", sent_ms=1000 * sent_s, lag_ms=0.0, latency_ms=0.0, ttft_ms=ttft_ms,
        prompt_tokens=1000, cached_tokens=cached, worker=worker,
    )  # fmt: skip


def played(*outcomes: RequestOutcome) -> SimulatedFleet:
    """Return a fleet whose third engine joined at 12 s and served from 14 s on, with such ends."""
    fleet = joined(None)
    fleet.outcomes[:] = outcomes
    worker = fleet.engines[2].worker
    fleet.joining.serves_s[worker] = 14.0
    fleet.joining.warmed_tokens[worker] = 5_000
    return fleet


def test_hits_count_from_serving_on_and_first_tokens_from_joining_on() -> None:
    fleet = played(
        outcome(11.9, 0, ttft_ms=999.0),
        outcome(12.0, 400, ttft_ms=20.0),
        outcome(14.0, 500, worker="worker-2"),
        outcome(73.9, 700, ttft_ms=30.0),
        outcome(74.0, 1000),
        outcome(86.9, 1000, ttft_ms=40.0),
        outcome(87.0, 0, ttft_ms=999.0),
    )
    sums = JoinSums()

    sums.add(fleet, 2, JOIN_S)
    sums.add(fleet, 2, JOIN_S)

    # Of 2,000 tokens 1,200 are cached; 600 + 500 + 300 are computed.
    assert sums.cells() == ("2.0", "5,000", "0.500", "0.600", "0.83", "20", "40", "40", "0.00")
    assert len(sums.cells()) == len(JOIN_HEAD)
    assert sums.computed == 2 * 1400


def test_an_engine_that_was_never_let_in_or_sent_anything_has_no_figures() -> None:
    late, idle = played(), played(outcome(20.0, 500))
    late.joining.serves_s.clear()
    sums = [JoinSums(), JoinSums()]

    for one, fleet in zip(sums, (late, idle), strict=True):
        one.add(fleet, 2, JOIN_S)

    assert [one.cells() for one in sums] == [DASHES * len(JOIN_HEAD)] * 2


def test_a_leave_compares_the_minute_before_with_the_one_after() -> None:
    before = [outcome(39.9, 0), outcome(40.0, 500, ttft_ms=None), outcome(99.9, 500, ttft_ms=100.0)]
    after = [outcome(100.0, 250), outcome(110.0, 250, ttft_ms=200.0), outcome(120.0, 250)]

    cells = leave_cells([*before, *after], 100.0)

    assert cells == ("17", "112", "0.500", "0.750", "1.50", "99", "196")
    assert len(cells) == len(LEAVE_HEAD)


@pytest.mark.parametrize(
    ("sent_s", "leave_s"), [((1.0, 2.0), 3.0), ((1.0, 2.0), 2.0), ((10.0, 20.0), 5.0)]
)
def test_a_leave_before_or_after_all_requests_has_no_figures(
    sent_s: tuple[float, ...], leave_s: float
) -> None:
    assert leave_cells([outcome(one, 0) for one in sent_s], leave_s) == DASHES * len(LEAVE_HEAD)


def test_each_engine_has_a_row_of_its_own() -> None:
    fleet = joined(None)
    fleet.options = msgspec.structs.replace(fleet.options, leaves=((0, 20.0),))

    found = changes_of("4/s", "kv", fleet)

    assert (found.setting, found.policy) == ("4/s", "kv")
    assert [row[0] for row in found.joins] == ["2@12"]
    assert [row[0] for row in found.leaves] == ["0@20"]
    assert found.joins[0][2] == "0"


def options(folder: Path, **more: Any) -> SimulateOptions:
    return replace(
        SimulateOptions(
            write_trace(folder, 400),
            engines=3,
            rate=(20.0,),
            policy=("round-robin", "kv"),
            progress=False,
            blocks=4096,
        ),
        **more,
    )


def test_the_command_shows_both_tables_and_the_same_seed_the_same(tmp_path: Path) -> None:
    asked = options(tmp_path, join=("2@5",), leave=("0@12",), warm_share=(0.0, 0.5))

    first, second = run(asked)[0], run(asked)[0]

    assert first == second
    assert "members    engine 2 joins at 5 s, engine 0 leaves at 12 s" in first
    joins = first.split("engines that join")[1].split("engines that leave")[0].splitlines()
    rows = [line.split() for line in joins if "2@5" in line]
    assert [row[0] for row in rows] == ["round-robin", "kv+warm=0", "kv+warm=0.5"]
    assert [int(row[3].replace(",", "")) > 0 for row in rows] == [False, False, True]
    assert float(rows[2][4]) > float(rows[1][4])
    assert first.split("engines that leave")[1].count("0@12") == 3
    assert "engines that" not in run(replace(asked, join=(), leave=()))[0]


def test_one_share_has_no_name(tmp_path: Path) -> None:
    out, _ = run(options(tmp_path, join=("5",), policy=("kv",)))

    assert "kv+warm" not in out
    assert "engines that leave" not in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"join": ("21",)}, r"^--join 2@21: at 20 requests/s the last request is sent at 20 s; "),
        ({"leave": ("0@999999999",)}, r"^--leave 0@1e\+09: at 20 requests/s the last request"),
    ],
)
def test_what_happens_after_the_last_request_is_refused(
    tmp_path: Path, more: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(options(tmp_path, **more))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"warm_share": (-0.1,)}, r"^--warm-share -0.1: shares from 0 to 1, each once$"),
        ({"warm_share": (1e25,)}, r"^--warm-share 1e\+25: "),
        ({"warm_share": (float("nan"),)}, r"^--warm-share nan: "),
        ({"warm_share": (0.1, 0.1)}, r"^--warm-share 0.1,0.1: "),
        ({"warm_share": ()}, r"^--warm-share : "),
        ({"join": ("5",), "capacity": True}, r"^--capacity --join: .*leave one of both out$"),
        ({"leave": ("5",), "tune": "dynamo"}, r"^--tune --leave: "),
        ({"join": ("soon",)}, r"^--join 'soon': write "),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_simulated(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_simulation(options(tmp_path, **more))


def test_in_a_closed_loop_an_engine_that_joins_too_late_has_no_figures(tmp_path: Path) -> None:
    out, _ = run(options(tmp_path, rate=(), live=(4.0,), join=("99999",), policy=("kv",)))

    row = next(line for line in out.splitlines() if "2@99999" in line)
    assert row.split()[2:] == list(DASHES * len(JOIN_HEAD))
