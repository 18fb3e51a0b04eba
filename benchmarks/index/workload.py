"""The workload of bench_index: who holds what, what changes, what is asked. Equal for all peers.

Zipf system prompts of 8-512 blocks; sessions behind them (lognormal, median ~200 blocks; 3 % long
documents of 4,000-9,500; 15 % branches of an earlier session); 1-3 workers a session at different
depths, 35 % of them with an evicted tail. Churn: 60 % of the stores are one-block decode appends,
evictions go leaf first. Requests of exactly D blocks: 10 % cold, 15 % held in full, 75 % partly.
"""

import random
from array import array
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.hashing import Tokens, pack_tokens, sequence_hashes

BLOCK_SIZE = 16
BLOCK_BYTES = BLOCK_SIZE * 4
DYNAMO_SEED: Final = 1337
_HIGH = bytes(i & 1 for i in range(256))


class Change(msgspec.Struct, frozen=True):
    """Worker `worker` now holds (or no longer holds) blocks first..last-1 of path `path`."""

    stored: bool
    worker: int
    path: int
    first: int
    last: int


class Request(msgspec.Struct, frozen=True):
    """A prompt, in the forms the peers take it."""

    tokens: list[int]
    packed: bytes
    hashes: list[int]
    local: list[int]


def dynamo_local_hashes(tokens: Tokens) -> list[int]:
    """Return by what NVIDIA Dynamo's index knows every full block: XXH3-64 of its tokens as u32s.

    Source: ai-dynamo-runtime 1.6.1, `compute_block_hash_for_seq` (golden vectors in the tests).
    """
    data = bytes(pack_tokens(tokens))
    starts = range(0, len(data) - BLOCK_BYTES + 1, BLOCK_BYTES)
    return [xxh3_64_intdigest(data[at : at + BLOCK_BYTES], DYNAMO_SEED) for at in starts]


def _tokens(seed: int, blocks: int) -> bytes:
    """Return that many blocks of tokens below 2^17 as u32s."""
    data = bytearray(random.Random(seed).randbytes(blocks * BLOCK_BYTES))
    data[2::4] = data[2::4].translate(_HIGH)
    data[3::4] = bytes(blocks * BLOCK_SIZE)
    return bytes(data)


class Path:
    """A sequence of blocks: pieces (seed, blocks made, blocks used) and their hashes."""

    def __init__(self, pieces: list[tuple[int, int, int]], before: "Path | None") -> None:
        self.pieces = pieces
        kept = sum(used for _, _, used in pieces[:-1])
        seed, made, _ = pieces[-1]
        own = _tokens(seed, made)
        self.hashes: array[int] = before.hashes[:kept] if before else array("Q")
        self.local: array[int] = before.local[:kept] if before else array("Q")
        root = self.hashes[-1] if kept else 0
        self.hashes.extend(sequence_hashes(own, BLOCK_SIZE, root))
        self.local.extend(dynamo_local_hashes(own))
        self.shared = kept

    def __len__(self) -> int:
        return len(self.hashes)

    def tokens(self) -> bytes:
        return b"".join(
            _tokens(seed, made)[: used * BLOCK_BYTES] for seed, made, used in self.pieces
        )


class Workload:
    """A fleet's caches, built until `entries` (worker, block) pairs are held."""

    def __init__(self, workers: int, entries: int, seed: int = 1) -> None:
        self.workers = workers
        self._random = random.Random(seed)
        self._seed = seed * 1_000_000_007
        self.paths: list[Path] = []
        self._held: list[dict[int, int]] = [{} for _ in range(workers)]
        self._pinned: list[dict[int, int]] = [{} for _ in range(workers)]
        self._sessions: list[dict[int, None]] = [{} for _ in range(workers)]
        self.entries = 0
        self.loads: list[Change] = []
        prompts = 40 + workers
        self._prompts = [self._new_prompt() for _ in range(prompts)]
        self._weights = [1 / (rank + 1) ** 1.1 for rank in range(prompts)]
        while self.entries < entries:
            self._new_session()

    def _piece(self, blocks: int) -> tuple[int, int, int]:
        self._seed += 1
        return (self._seed, blocks, blocks)

    def _new_prompt(self) -> Path:
        length = int(min(512, max(8, self._random.lognormvariate(4.2, 1.0))))
        return Path([self._piece(length)], None)

    def _new_session(self) -> None:
        rng = self._random
        long = rng.random() < 0.03
        length = rng.randint(4000, 9500) if long else int(max(4, rng.lognormvariate(5.3, 0.8)))
        before = rng.choices(self._prompts, self._weights)[0]
        cut = len(before)
        if self.paths and rng.random() < 0.15:
            before = rng.choice(self.paths[-2000:])
            cut = rng.randint(len(before) // 3, len(before))
        pieces: list[tuple[int, int, int]] = []
        left = cut
        for seed, made, used in before.pieces:
            if left:
                pieces.append((seed, made, min(used, left)))
                left -= min(used, left)
        path = Path([*pieces, self._piece(length)], before)
        self.paths.append(path)
        deepest = path.shared + max(1, int(length * 0.9))
        holders = rng.sample(range(self.workers), min(self.workers, rng.choice((1, 1, 1, 2, 2, 3))))
        for order, worker in enumerate(holders):
            depth = deepest if not order else rng.randint(path.shared, deepest)
            if rng.random() < 0.35:
                depth = path.shared + int((depth - path.shared) * rng.uniform(0.1, 0.9))
            self._hold(worker, len(self.paths) - 1, depth, self.loads)

    def _hold(self, worker: int, number: int, depth: int, out: list[Change]) -> None:
        held, pinned = self._held[worker], self._pinned[worker]
        path = self.paths[number]
        start = 0
        before: tuple[int, int] | None = None
        for seed, _, used in path.pieces:
            want = min(used, depth - start)
            if want <= 0:
                break
            have = held.get(seed, 0)
            if want > have:
                out.append(Change(True, worker, number, start + have, start + want))
                held[seed] = want
                self.entries += want - have
            if before is not None:
                pinned[before[0]] = max(pinned.get(before[0], 0), before[1])
            before = (seed, used)
            start += used
        if depth > path.shared:
            self._sessions[worker].setdefault(number, None)

    def churn(self, events: int) -> list[Change]:
        """Return changes of about ten blocks each, half of them evictions."""
        out: list[Change] = []
        sessions = [list(known) for known in self._sessions]
        while len(out) < events:
            worker = self._random.randrange(self.workers)
            if sessions[worker]:
                self._change(worker, self._random.choice(sessions[worker]), out)
        return out

    def _change(self, worker: int, number: int, out: list[Change]) -> None:
        rng = self._random
        path = self.paths[number]
        seed = path.pieces[-1][0]
        have = self._held[worker].get(seed, 0)
        if rng.random() < 0.5:
            grow = 1 if rng.random() < 0.6 else rng.randint(12, 36)
            depth = min(len(path), path.shared + have + grow)
            if depth > path.shared + have:
                self._hold(worker, number, depth, out)
            return
        drop = min(rng.randint(4, 16), have - self._pinned[worker].get(seed, 0))
        if drop > 0:
            self._held[worker][seed] = have - drop
            self.entries -= drop
            end = path.shared + have
            out.append(Change(False, worker, number, end - drop, end))

    def requests(self, blocks: int, count: int) -> list[Request]:
        """Return `count` different prompts of exactly that many blocks."""
        full = [path for path in self.paths if len(path) >= blocks]
        return [self._request(blocks, full) for _ in range(count)]

    def _request(self, blocks: int, full: list[Path]) -> Request:
        rng = self._random
        kind = rng.random()
        data = b""
        if kind < 0.25:
            if kind >= 0.1 and full:
                data = rng.choice(full).tokens()[: blocks * BLOCK_BYTES]
        else:
            kept = rng.randint(1, blocks)
            some = rng.sample(self.paths, min(200, len(self.paths)))
            enough = [path for path in some if len(path) >= kept] or full or some
            data = rng.choice(enough).tokens()[: kept * BLOCK_BYTES]
        self._seed += 1
        data += _tokens(self._seed, blocks - len(data) // BLOCK_BYTES)
        hashes = sequence_hashes(data, BLOCK_SIZE)
        tokens = memoryview(data).cast("I").tolist()
        return Request(tokens, data, hashes, dynamo_local_hashes(data))
