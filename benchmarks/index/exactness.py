"""Are the answers right when engines evict blocks from the middle of a prefix?

Engines do. A worker's raw cache then has holes; the right answer is the prefix before the first.
kvmesh makes each worker's stream prefix-closed at the publisher (`closure.Closure`); Dynamo's tree
takes the raw events. Both are compared with plain sets.
"""

import contextlib
import random
from types import ModuleType
from typing import Any

import msgspec

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, sequence_hashes
from kvmesh.core.engines.kv_events.closure import Closure
from kvmesh.core.index.index import KvIndex

WORKERS = 16
PATHS = 40
SHARED = 31
EVENTS = 4000
QUERIES = 150


class _Worker:
    """One engine's raw cache, its publisher, and its event numbers at Dynamo."""

    def __init__(self, name: WorkerId) -> None:
        self.name = name
        self.held: set[int] = set()
        self.closure = Closure()
        self.events = 0


def count_exact(
    core: ModuleType | None, inner_share: float, seed: int = 1
) -> tuple[int, int | None]:
    """Return how many of 150 answers are right, ours and Dynamo's, after 4,000 changes.

    `inner_share` of the evictions hit an inner block instead of the deepest one.
    """
    rng = random.Random(seed)
    paths = [_path(rng, number) for number in range(PATHS)]
    workers = [_Worker(WorkerId(f"w{number}")) for number in range(WORKERS)]
    index, tree = KvIndex(), core.RadixTree() if core else None
    for _ in range(EVENTS):
        number = rng.randrange(WORKERS)
        worker, path = workers[number], rng.choice(paths)
        depth = _depth(worker.held, path)
        if rng.random() < 0.5 or depth <= SHARED:
            end = min(len(path), depth + rng.randint(1, 30))
            _store(index, tree, number, worker, path[:end], depth)
        elif rng.random() < inner_share:
            _evict(index, tree, number, worker, [path[rng.randrange(depth)]])
        else:
            tail = [block for block in path[max(SHARED, depth - 10) :] if block in worker.held]
            _evict(index, tree, number, worker, tail[::-1])
    ours = theirs = 0
    for _ in range(QUERIES):
        path = rng.choice(paths)
        right = {one.name: depth for one in workers if (depth := _depth(one.held, path))}
        ours += index.find_matches(BlockHashes.of(path, 1)) == right
        if tree is not None:
            found = {f"w{key[0]}": depth for key, depth in tree.find_matches(path).scores.items()}
            theirs += found == right
    return ours, theirs if tree is not None else None


def _path(rng: random.Random, number: int) -> list[int]:
    shared = [number % 10, *range(SHARED - 1)]
    return sequence_hashes([*shared, *(rng.randrange(1 << 30) for _ in range(70))], 1)


def _depth(held: set[int], path: list[int]) -> int:
    return next((depth for depth, block in enumerate(path) if block not in held), len(path))


def _store(
    index: KvIndex, tree: Any, number: int, worker: _Worker, path: list[int], depth: int
) -> None:
    parent, run = (path[depth - 1] if depth else ROOT), path[depth:]
    if not run:
        return
    worker.held.update(run)
    for event in worker.closure.hold(parent, run):
        index.apply(worker.name, event)
    blocks = [{"block_hash": block, "tokens_hash": block} for block in run]
    _report(tree, number, worker, {"stored": {"parent_hash": parent or None, "blocks": blocks}})


def _evict(index: KvIndex, tree: Any, number: int, worker: _Worker, blocks: list[int]) -> None:
    worker.held.difference_update(blocks)
    for event in worker.closure.drop(blocks):
        index.apply(worker.name, event)
    _report(tree, number, worker, {"removed": {"block_hashes": blocks}})


def _report(tree: Any, number: int, worker: _Worker, data: dict[str, Any]) -> None:
    if tree is not None:
        event = {"event_id": worker.events, "data": data}
        worker.events += 1
        # It refuses what it cannot place ("Failed to find block"), which is what is measured.
        with contextlib.suppress(RuntimeError):
            tree.apply_event(number, msgspec.json.encode(event))
