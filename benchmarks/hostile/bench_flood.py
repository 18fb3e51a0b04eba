"""What a million block hashes cost that an attacker chose, beside as many random ones.

    python -m benchmarks.hostile.bench_flood --blocks 1048576

Chosen ones have equal upper bits after a multiplication by the golden ratio, which many tables of
u64s take for a hash; `one part` are those of one lowest byte, too, so that they are all in one of
the 256 parts of a block table. Processor time; the worst call is the longest one of each step.
"""

import argparse
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final, TypeVar

from benchmarks.measure import quiet_collector
from kvmesh.core.blocks.events import ROOT, VERSION, Batch, Stored, WorkerId, encode_batch
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_in_slices
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot
from kvmesh.core.journal.replica import IndexReplica

T = TypeVar("T")

W: Final = WorkerId("w")
PROMPT: Final = 128
MESSAGE: Final = 32_768
BUDGET: Final = 4096
_INVERSE: Final = pow(0x9E3779B97F4A7C15, -1, 1 << 64)


def random_ones(count: int) -> Iterator[int]:
    draw = Random(1)
    for _ in range(count):
        yield draw.getrandbits(64)


def chosen(count: int) -> Iterator[int]:
    for low in range(count):
        folded = (0x12345678 << 32 | low) * _INVERSE & (1 << 64) - 1
        yield folded ^ folded >> 32


def of_one_part(count: int) -> Iterator[int]:
    """Yield numbers of one lowest byte, few in the upper half of the product."""
    for low in range(count):
        yield low << 8 | 0x42


KINDS: Final[dict[str, Callable[[int], Iterator[int]]]] = {
    "random": random_ones,
    "chosen": chosen,
    "one part": of_one_part,
}


class Watch:
    """Processor time of calls: their sum and the longest one, by step."""

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, float]] = {}

    def call(self, step: str, what: Callable[[], T]) -> T:
        """Run and time one call of a step."""
        start_s = time.process_time()
        result = what()
        took_s = time.process_time() - start_s
        total_s, worst_s = self.steps.get(step, (0.0, 0.0))
        self.steps[step] = total_s + took_s, max(worst_s, took_s)
        return result

    def drain(self, step: str, pieces: Iterator[T]) -> list[T]:
        """Run an iterator to its end, each piece a call."""
        found: list[T] = []
        with suppress(StopIteration):
            while True:
                found.append(self.call(step, pieces.__next__))
        return found


def measure(numbers: Sequence[int]) -> Watch:
    watch = Watch()
    replica = IndexReplica(KvIndex())
    replica.open("today", 0.0)
    for number, at in enumerate(range(0, len(numbers), MESSAGE), 1):
        event = Stored(ROOT, pack_hashes(numbers[at : at + MESSAGE]))
        data = encode_batch(Batch(VERSION, 1, number, [event]))
        watch.call("fold, messages of 256 KB", partial(replica.fold, number, W, data, 0.0))
    index = replica.index
    prompts = [array("Q", numbers[at : at + PROMPT]) for at in range(0, len(numbers), PROMPT)]
    for prompt in prompts:
        watch.call("find", partial(index.find_matches, BlockHashes.of(prompt, 1)))
    stored = b"".join(watch.drain("snapshot", encode_snapshot(index.freeze(), Position())))
    watch.drain("load", decode_in_slices(stored))
    index.clear(W)
    while not watch.call("sweep", partial(index.sweep, BUDGET)):
        pass
    believed = new_approx(60.0)
    for number, prompt in enumerate(prompts):
        watch.call("believe", partial(believed.record, W, prompt, number / 1000))
    while not watch.call("expire", partial(believed.expire, 1e9, BUDGET)):
        pass
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1 << 20)
    blocks = parser.parse_args().blocks
    print(f"{blocks} blocks; ns a block in all, and the longest call in ms")
    found = {}
    for kind, make in KINDS.items():
        numbers = array("Q", make(blocks))
        with quiet_collector():
            found[kind] = measure(numbers).steps
    print("| step | " + " | ".join(found) + " |")
    for step in found["random"]:
        row = [
            f"{1e9 * total_s / blocks:.0f} ns, {1e3 * worst_s:.2f} ms"
            for total_s, worst_s in (one[step] for one in found.values())
        ]
        print(f"| {step} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
