"""What vLLM's own cache manager published of several groups: each hit as long as it said.

Made by tests/fixtures/engines/group_oracle.py: a case is a set of groups, 40 prompts and what was
evicted for them.
"""

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_tokens
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.index.index import KvIndex

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"
W = WorkerId("w")
NEVER_TOO_LONG = {
    "chunks": "events do not tell how long the chunks of chunked local attention are",
    "wide windows, dropped": "a window's block that starts behind the hit need not be whole",
}


@cache
def cases() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    steps: list[dict[str, Any]] = []
    for path in sorted(FIXTURES.glob("*_groups.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for line in map(json.loads, lines):
                if "case" in line:
                    steps = found[line["case"]] = []
                steps.append(line)
    return found


def predict(cache: EngineCache, index: KvIndex, prompt: list[int], *, drops: bool) -> int:
    """Return the tokens that an engine reuses, which computes one at least."""
    if not cache.block_size:
        return 0
    known = prompt if drops else prompt[:-1]
    hashes = BlockHashes(known, cache.block_size, ids=bytes(pack_tokens(prompt)))
    return index.find_matches(hashes).get(W, 0) * cache.block_size


def replay(name: str) -> Iterator[tuple[int, int]]:
    """Yield what was predicted, and what was hit."""
    head, *steps = cases()[name]
    cache, index = EngineCache(drops=head["drops"]), KvIndex()
    for step in steps:
        if "hit" in step:
            yield predict(cache, index, step["prompt"], drops=head["drops"]), step["hit"]
        else:
            for event in cache.take(bytes.fromhex(step["hex"])):
                index.apply(W, event)
    again = KvIndex()
    for event in cache.dump():
        again.apply(W, event)
    assert again.worker_digest(W) == index.worker_digest(W)
    assert not cache.statistics().odd


@pytest.mark.parametrize("name", sorted(cases()))
def test_hits_are_as_long_as_vllm_finds_them(name: str) -> None:
    pairs = list(replay(name))

    assert len(pairs) == 40
    assert sum(hit > 0 for _, hit in pairs) >= 16
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    if name in NEVER_TOO_LONG:
        assert all(predicted < hit for predicted, hit in wrong)
    else:
        assert not wrong


def test_a_capture_of_a_sliding_window_model_is_understood_in_whole() -> None:
    cache, index = EngineCache(), KvIndex()
    for line in (FIXTURES / "vllm_0.32.0_gemma3.jsonl").read_text().splitlines():
        for event in cache.take(bytes.fromhex(json.loads(line)["hex"])):
            index.apply(W, event)

    statistics = cache.statistics()
    counts = statistics.residency
    assert (statistics.odd, statistics.undecodable, statistics.unknown_fields) == ((), 0, 0)
    assert (counts.orphans, counts.unknown_removals, counts.partial_blocks) == (0, 0, 0)
    assert [group.kind for group in statistics.groups].count("sliding_window") == 3
    assert statistics.visible_blocks == index.statistics().blocks == 41
