"""Hits at grouped workers against the rule, read off a set of blocks and a set of ends a worker."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    lookahead_digest,
    pack_hashes,
    pack_tokens,
    sequence_hashes,
)
from kvmesh.core.index.freeze import FrozenIndex
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot

WORKERS = [WorkerId(f"w{number}") for number in range(4)]
TIERS = 2
TOKENS = 2
DEPTH = 6
RULES = [Reuse(), Reuse(0, 1), Reuse(1), Reuse(2, 1)]
PROMPTS = [[number >> bit & 1 for bit in range(DEPTH)] for number in range(TOKENS**DEPTH)]

Held = tuple[dict[tuple[WorkerId, int], set[int]], dict[WorkerId, Reuse]]
"""Packed blocks, and ends, by worker and tier; and every rule."""

HASHES = {tuple(prompt): sequence_hashes(prompt, 1) for prompt in PROMPTS}

workers = st.sampled_from(WORKERS)
tiers = st.sampled_from([0, 0, 1])
prompts = st.sampled_from(PROMPTS)
depths = st.integers(1, DEPTH - 1)


def key(prompt: list[int], depth: int, count: int) -> int | None:
    """Return the key of an end behind `depth` blocks of one token; None where too few follow."""
    block = HASHES[tuple(prompt)][depth - 1]
    behind = prompt[depth : depth + count]
    if not count:
        return block
    if len(behind) < count:
        return None
    return extend_hash(block, lookahead_digest(bytes(pack_tokens(behind))))


class EndsMachine(RuleBasedStateMachine):
    """Chains, ends and rules in any order, at an index that has room for them."""

    frozen = Bundle("frozen")

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.held: dict[tuple[WorkerId, int], set[int]] = {}
        self.followed: dict[WorkerId, Reuse] = {}

    def of(self, worker: WorkerId, tier: int) -> set[int]:
        return self.held.setdefault((worker, tier), set())

    @rule(worker=workers, reuse=st.sampled_from(RULES))
    def follow(self, worker: WorkerId, reuse: Reuse) -> None:
        self.index.apply(worker, reuse)
        self.followed[worker] = reuse

    @rule(worker=workers, prompt=prompts, depth=depths, tier=tiers)
    def store(self, worker: WorkerId, prompt: list[int], depth: int, tier: int) -> None:
        run = sequence_hashes(prompt, 1)[:depth]
        assert self.index.apply(worker, Stored(ROOT, pack_hashes(run), tier)) == 0
        self.of(worker, tier).update(run)

    @rule(worker=workers, prompt=prompts, depth=depths, tier=tiers, keep=st.booleans())
    def end(self, worker: WorkerId, prompt: list[int], depth: int, tier: int, keep: bool) -> None:
        """Tell an end, or that it is none any more."""
        count = self.followed[worker].lookahead if worker in self.followed else 0
        found = key(prompt, depth, count)
        if found is None:
            return
        run, ends = pack_hashes([found]), self.of(worker, ENDS + tier)
        if keep:
            self.index.apply(worker, Stored(ROOT, run, ENDS + tier))
            if worker in self.followed:
                ends.add(found)
        else:
            self.index.apply(worker, Removed(run, ENDS + tier))
            ends.discard(found)

    @rule(worker=workers, leaves=st.booleans())
    def start_over(self, worker: WorkerId, leaves: bool) -> None:
        if leaves:
            self.index.remove_worker(worker)
        else:
            self.index.apply(worker, Cleared())
        for place in [place for place in self.held if place[0] == worker]:
            del self.held[place]
        self.followed.pop(worker, None)

    @rule(budget=st.sampled_from([1, 300, 5000]))
    def sweep(self, budget: int) -> None:
        self.index.sweep(budget)

    @rule(target=frozen)
    def freeze(self) -> tuple[FrozenIndex, Held]:
        copied = {place: set(blocks) for place, blocks in self.held.items()}
        return self.index.freeze(), (copied, dict(self.followed))

    @rule(view=consumes(frozen))
    def go_back_to_a_snapshot(self, view: tuple[FrozenIndex, Held]) -> None:
        frozen, (held, rules) = view
        data = b"".join(encode_snapshot(frozen, Position("s", 7)))
        snapshot = decode_snapshot(data)

        self.index.load(snapshot.image, snapshot.truncated)

        assert data[7] == 1
        self.held, self.followed = held, rules

    def chain(self, worker: WorkerId, prompt: list[int], tier: int) -> int:
        """Return how many blocks are held; the one with the last token is never reused."""
        blocks, hashes = self.of(worker, tier), HASHES[tuple(prompt)][:-1]
        return next((place for place, one in enumerate(hashes) if one not in blocks), len(hashes))

    def hit(self, worker: WorkerId, prompt: list[int], tier: int) -> int:
        """Return how long a hit is by the rule."""
        depth = self.chain(worker, prompt, tier)
        reuse, ends = self.followed.get(worker), self.of(worker, ENDS + tier)
        if reuse is None:
            return depth
        while depth and key(prompt, depth, reuse.lookahead) not in ends:
            depth -= 1
        return max(0, depth - reuse.drop)

    @invariant()
    def hits_follow_the_rule(self) -> None:
        for prompt in PROMPTS[::5]:
            packed = bytes(pack_tokens(prompt))
            asked = BlockHashes(packed[:-4], 1, ids=packed)
            groups, chains = self.index.find_hits(asked)
            hits = {worker: self.hit(worker, prompt, 0) for worker in WORKERS}
            held = {worker: self.chain(worker, prompt, 0) for worker in WORKERS}

            assert {one: depth for depth, group in groups for one in group} == {
                worker: depth for worker, depth in hits.items() if depth
            }
            assert chains == {one: held[one] for one in WORKERS if hits[one] < held[one]}
            assert [depth for depth, _ in groups] == sorted({*hits.values()} - {0}, reverse=True)

    @invariant()
    def tiers_are_read_as_held_there_or_nearer(self) -> None:
        for prompt in PROMPTS[::13]:
            packed = bytes(pack_tokens(prompt))
            found = self.index.find_tier_matches(BlockHashes(packed[:-4], 1, ids=packed))
            nearer = dict.fromkeys(WORKERS, 0)
            for tier, matches in enumerate(found):
                for worker in WORKERS:
                    nearer[worker] = max(nearer[worker], self.hit(worker, prompt, tier))
                assert matches == {worker: depth for worker, depth in nearer.items() if depth}

    @invariant()
    def nothing_but_contents_and_rules_is_in_the_digest(self) -> None:
        digests = dict.fromkeys(WORKERS, 0)
        for (worker, tier), blocks in self.held.items():
            digests[worker] += (2 * tier + 1) * sum(blocks)
        for worker in WORKERS:
            ruled = self.index.ends.digest(worker)
            assert (ruled != 0) == (worker in self.followed)
            assert self.index.worker_digest(worker) == (digests[worker] + ruled) % 2**64
        assert self.index.ends.rules() == self.followed
        assert self.index.statistics().grouped == len(self.followed)


TestEnds = EndsMachine.TestCase
TestEnds.settings = settings(max_examples=25, stateful_step_count=25)
