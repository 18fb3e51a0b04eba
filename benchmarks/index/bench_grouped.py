"""What workers of several cache groups cost the index, beside the same workers of one.

    python -m benchmarks.index.bench_grouped --quick

64 workers hold prompts of 50 to 240 blocks, 40 of them alike. Grouped ones tell every block as an
end but the last two of each prompt; a search then cuts nearly each hit. Processor time in warm
caches. "looks ahead": keys of ends cover two tokens, so a search hashes them, too.
"""

import time
from functools import partial
from random import Random
from typing import Final

from benchmarks.measure import Candidate, Sample, compare, parse_options, quiet_collector, report
from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    VERSION,
    Batch,
    Event,
    Reuse,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import BlockHashes, extend_hash, lookahead_digest, pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot

WORKERS: Final = [WorkerId(f"w{number}") for number in range(64)]
SHARED: Final = 40
LEFT_OUT: Final = 2
AHEAD: Final = 2
STEP: Final = 4


class Bench:
    """An index of workers with `rule`, None for plain ones, and prompts that it was told of."""

    def __init__(self, prompts: int, rule: Reuse | None) -> None:
        rng = Random(3)
        self.rule = rule
        self.index = KvIndex()
        system = [rng.randrange(1 << 62) for _ in range(SHARED)]
        if rule is not None:
            for worker in WORKERS:
                self.index.apply(worker, rule)
        self.prompts: list[BlockHashes] = []
        for _ in range(prompts):
            blocks = system + [rng.randrange(1 << 62) for _ in range(rng.choice([10, 60, 200]))]
            ids = rng.randbytes(4 * (len(blocks) + AHEAD))
            self.prompts.append(BlockHashes.of(blocks, 1, ids))
            for worker in rng.sample(WORKERS, rng.choice([1, 1, 2, 5])):
                self.index.store(worker, ROOT, pack_hashes(blocks))
                if rule is not None:
                    self.index.store(worker, ROOT, self._ends(self.prompts[-1]), ENDS)

    def round(self, messages: int) -> Sample:
        """Search each prompt, fold so many messages of 4 blocks, and write a snapshot."""
        clock, index = time.process_time_ns, self.index
        batches, other = self._messages(messages), KvIndex()
        with quiet_collector():
            marks = [clock()]
            for prompt in self.prompts:
                index.find_groups(prompt)
            marks.append(clock())
            other.apply(WORKERS[0], Stored(ROOT, bytes(8)))
            if self.rule is not None:
                other.apply(WORKERS[0], self.rule)
                other.apply(WORKERS[0], Stored(ROOT, bytes(8), ENDS))
            marks.append(clock())
            for data, first in batches:
                if other.fold(WORKERS[0], data, 1, first) is None:
                    for event in decode_batch(data).events:
                        other.apply(WORKERS[0], event)
            marks.append(clock())
        size = len(b"".join(encode_snapshot(index.freeze(), Position())))
        return {
            "search, us": (marks[1] - marks[0]) / len(self.prompts) / 1000,
            "fold a block, ns": (marks[3] - marks[2]) / messages / STEP,
            "snapshot, B a block": size / index.statistics().blocks,
        }

    def _ends(self, prompt: BlockHashes) -> bytes:
        blocks = list(prompt.upto(prompt.blocks)[: prompt.blocks - LEFT_OUT])
        if self.rule is not None and self.rule.lookahead:
            for depth, block in enumerate(blocks, 1):
                behind = prompt.behind(depth, AHEAD)
                blocks[depth - 1] = extend_hash(block, lookahead_digest(behind or b""))
        return pack_hashes(blocks)

    def _messages(self, count: int) -> list[tuple[bytes, int]]:
        """Return messages of one worker with the number of the first event of each."""
        rng, first, made = Random(1), 1, list[tuple[bytes, int]]()
        for _ in range(count):
            run = pack_hashes([rng.randrange(1, 1 << 62) for _ in range(STEP)])
            events: list[Event] = [Stored(ROOT, run)]
            if self.rule is not None:
                events.append(Stored(ROOT, run, ENDS))
            made.append((encode_batch(Batch(VERSION, 1, first, events)), first))
            first += len(events)
        return made


def main() -> None:
    options = parse_options(__doc__ or "")
    prompts, messages = options.size(full=1500, quick=300), options.size(full=3000, quick=500)
    rules = {"plain": None, "grouped": Reuse(), "looks ahead": Reuse(lookahead=AHEAD)}
    candidates: dict[str, Candidate] = {
        name: partial(Bench(prompts, rule).round, messages) for name, rule in rules.items()
    }
    report(compare("64 workers, plain and grouped", candidates, options.rounds), options)


if __name__ == "__main__":
    main()
