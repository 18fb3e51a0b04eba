from pathlib import Path
from typing import Any

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.analyze.command import AnalyzeOptions, fleet_of
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
