"""`kvmesh simulate --sites`: what is played, what is shown, and what makes no sense."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvmesh.core.buckets.spill import CHARS_PER_TOKEN
from kvmesh.errors import ConfigError
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import TraceSlice, load_slice
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.sites.comparison import (
    CONVERSATIONS,
    RULES,
    SiteFigures,
    SitePlayer,
    check_sites,
    made_up,
    round_trips,
    site_figures,
    site_table,
)
from kvmesh_lab.simulator.sites.homes import TraceHomes
from kvmesh_lab.simulator.sites.world import Played, World
from kvmesh_lab.traces.trace import TraceRequest
from tests.unit.simulator.test_command import run, write_trace

BLOCK = 64


def options(trace: Path = CONVERSATIONS, **more: Any) -> SimulateOptions:
    asked = SimulateOptions(trace, sites=3, engines=1, rate=(8.0,), progress=False)
    return replace(asked, **more)


def test_conversations_are_made_up_and_every_rule_played_alike_each_time() -> None:
    asked = options(requests=200, site_rtt_ms=(30.0, 80.0, 150.0), site_load=(8.0, 1.0, 1.0))

    first, second = run(asked)[0], run(asked)[0]

    assert first == second
    assert "trace      conversations" in first
    assert "3 of 1 engine each, round trips of 30,80,150 ms, clients near them 8:1:1" in first
    rows = [line.split() for line in first.splitlines() if line.strip().startswith(RULES)]
    assert [row[0] for row in rows] == list(RULES)
    assert rows[0][2] == "x1.00"
    assert rows[0][5] == "0.0%"
    assert {row[7] for row in rows} == {"0"}
    assert first != run(replace(asked, seed=1))[0]


def test_a_trace_is_played_at_sites(tmp_path: Path) -> None:
    asked = options(write_trace(tmp_path), rate=(20.0, 40.0), policy=("kv:lmetric",), sites=2)

    out, _ = run(asked)

    assert "clients near them 1:1" in out
    assert "20 requests/s over all sites" in out
    assert "40 requests/s over all sites" in out
    assert not made_up(asked)


def requests(*lines: dict[str, Any], folder: Path) -> tuple[SimulateOptions, Any]:
    file = folder / "sites_b64.jsonl"
    file.write_text("\n".join(json.dumps({"output_length": 4, **one}) for one in lines))
    return options(file), load_slice(ReplayOptions(file))


def test_a_session_stays_near_a_site_and_its_turns_wait_for_each_other(tmp_path: Path) -> None:
    asked, trace = requests(
        {"timestamp": 0, "session_id": "s", "input_length": 140, "hash_ids": [1, 2]},
        {"session_id": "s", "delay": 3000, "input_length": 200, "hash_ids": [1, 2, 3]},
        {"timestamp": 9000, "input_length": 20, "hash_ids": []},
        folder=tmp_path,
    )
    made = make_requests(trace.requests, BLOCK, BLOCK)

    one, other = TraceHomes((1.0, 0.0, 1.0), 0, BLOCK).conversations(made, 2.0)

    first, second = one.turns
    assert (one.begins_s, other.begins_s) == (0.0, 4.5)
    assert (first.home, first.pause_s, second.pause_s) == (second.home, 0.0, 3.0)
    assert second.asked.ends == (made[1].hashes[-1], made[0].hashes[-1])
    assert first.asked.beginnings[-1].key == made[0].hashes[-1]
    assert second.asked.beginnings[-1] in first.asked.beginnings
    assert second.asked.prompt_chars == 200 * CHARS_PER_TOKEN
    assert other.turns[0].asked.beginnings == ()
    assert len(other.turns[0].asked.ends) == 1
    assert "x1.00" in run(asked)[0]


def test_clients_are_near_sites_by_their_shares() -> None:
    made = make_requests([TraceRequest(n, float(n), 70, 4, (n,)) for n in range(600)], BLOCK, BLOCK)

    homes = [one.turns[0].home for one in TraceHomes((4, 0, 1), 7, BLOCK).conversations(made, 1.0)]

    assert 440 <= homes.count(0) <= 520
    assert homes.count(1) == 0


def test_figures_leave_out_what_came_before_and_times_of_what_was_lost() -> None:
    player = SitePlayer(options(), None)
    world = World(player.world, "nearest", 0)
    world.played = [
        Played(0, 0, 1.0, 999.0, 100, 0, failed=False),
        Played(0, 1, 5.0, 20.0, 100, 60, failed=False),
        Played(1, 1, 6.0, 40.0, 100, 0, failed=False),
        Played(1, 1, 7.0, 0.0, 100, 0, failed=True),
    ]

    found = site_figures(world, 5.0)
    none = site_figures(world, 50.0)

    assert found.ttft is not None
    assert (found.turns, found.failed, found.ttft.p50, found.hit_rate) == (3, 1, 30.0, 0.3)
    assert found.away == pytest.approx(1 / 3)
    assert (none.turns, none.ttft, none.away, none.hit_rate) == (0, None, 0.0, 0.0)


def test_a_rule_under_which_all_are_lost_has_no_times() -> None:
    out = StringIO()

    Console(file=out).print(site_table("x", [SiteFigures("nearest", 3, 3, None, 0.0, 0.0)]))

    assert out.getvalue().splitlines()[-2].split() == ["nearest", *["-"] * 6, "3"]


def test_round_trips_are_of_pairs() -> None:
    assert round_trips(options(site_rtt_ms=(30.0, 80.0, 150.0))) == [
        [0.0, 30.0, 80.0],
        [30.0, 0.0, 150.0],
        [80.0, 150.0, 0.0],
    ]
    assert round_trips(options(sites=2, site_rtt_ms=(7.0,))) == [[0.0, 7.0], [7.0, 0.0]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sites": 0}, r"^--sites 0: from 1 to 8$"),
        ({"sites": 10**25}, r"^--sites 10{25}: from 1 to 8$"),
        ({"join": ("5",)}, r"^--sites 3 --join: .*leave one of both out$"),
        ({"capacity": True}, r"^--sites 3 --capacity: "),
        ({"json": Path("x.json")}, r"^--sites 3 --json: "),
        ({"rate": ()}, r"^--sites 3: say by --rate "),
        ({"load": (0.3,)}, r"^--sites 3: say by --rate "),
        ({"policy": ("kv", "random")}, r"^--sites 3 --policy kv,random: name one"),
        ({"site_rtt_ms": (1.0, 2.0)}, r"^--site-rtt-ms 1,2: .* of the 3 pairs of 3 sites"),
        ({"site_rtt_ms": ()}, r"^--site-rtt-ms : "),
        ({"site_rtt_ms": (-1.0,)}, r"^--site-rtt-ms -1: write one of 0 to 10,000 ms"),
        ({"site_rtt_ms": (1e25,)}, r"^--site-rtt-ms 1e\+25: "),
        ({"site_rtt_ms": (float("nan"),)}, r"^--site-rtt-ms nan: "),
        ({"site_load": (1.0, 2.0)}, r"^--site-load 1,2: write 3 shares"),
        ({"site_load": (0.0, 0.0, 0.0)}, r"^--site-load 0,0,0: "),
        ({"site_load": (1.0, -1.0, 1.0)}, r"^--site-load 1,-1,1: "),
        ({"site_load": (1.0, float("inf"), 1.0)}, r"^--site-load 1,inf,1: "),
    ],
)
def test_what_makes_no_sense_of_sites_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sites(options(**more))


def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--block-size 32: conversations have blocks of 16"):
        SitePlayer(options(block_size=32), None)
    with pytest.raises(ConfigError, match=r"^--rate 0.001: nobody asks within 240 s"):
        run(options(rate=(0.001,)))
    (made,) = (TraceRequest(1, 0.0, 70, 4, (1,), session="b", parent="a", after=0),)
    with pytest.raises(ConfigError, match=r"^--sites: t has sub-agents; take one without$"):
        SitePlayer(options(), TraceSlice("t", BLOCK, (made,)))
