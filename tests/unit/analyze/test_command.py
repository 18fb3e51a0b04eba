from pathlib import Path
from typing import Any

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.analyze.command import AnalyzeOptions, LiveFigures, fleet_of, live_table
from kvmesh_lab.analyze.live_advice import LiveTraffic
from kvmesh_lab.analyze.weight_advice import FleetSize


def options(**sizes: Any) -> AnalyzeOptions:
    return AnalyzeOptions(Path("trace.jsonl"), workers=4, **sizes)


def test_a_cache_is_named_in_tokens_or_in_blocks() -> None:
    assert fleet_of(options()) == FleetSize(4, 0, 16)
    assert fleet_of(options(worker_tokens=320)) == FleetSize(4, 320, 16)
    assert fleet_of(options(worker_tokens=320)).blocks == 20
    found = fleet_of(options(blocks_per_worker=10, kv_cache_block_size=32))
    assert (found, found.blocks) == (FleetSize(4, 320, 32), 10)


def test_two_sizes_of_one_cache_are_refused() -> None:
    with pytest.raises(ConfigError, match="--num-gpu-blocks 9 and --worker-tokens 8 both say"):
        fleet_of(options(blocks_per_worker=9, worker_tokens=8))


def test_what_caches_saved_is_shown_with_what_no_engine_has_confirmed() -> None:
    traffic = LiveTraffic(
        *(9, 0, 9, 0.6, 1200, 3.5, 0.25),
        cached=None,
        predicted=None,
        round_robin=None,
        core_breadth=0,
        core_depth=0.0,
    )

    table = live_table(LiveFigures(traffic, [], []))

    told = list(table.columns[1].cells)[:3]
    assert told == ["1,200, 60.0% of prompts", "3.5 engine-seconds", "25.0%"]
