"""What a hit is at workers of several cache groups."""

from time import process_time_ns

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Event, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    lookahead_digest,
    pack_hashes,
    pack_tokens,
    sequence_hashes,
)
from kvmesh.core.index.index import KvIndex

A, B = WorkerId("a"), WorkerId("b")
SIZE = 4
TOKENS = list(range(1, 42))
H = sequence_hashes(TOKENS, SIZE)


def chain(blocks: int) -> Stored:
    return Stored(ROOT, pack_hashes(H[:blocks]))


def ends(*depths: int, tier: int = 0) -> Stored:
    return Stored(ROOT, pack_hashes([H[depth - 1] for depth in depths]), ENDS + tier)


def end_key(depth: int, count: int) -> int:
    ids = bytes(pack_tokens(TOKENS[depth * SIZE : depth * SIZE + count]))
    return extend_hash(H[depth - 1], lookahead_digest(ids))


def prompt(tokens: int = len(TOKENS), *, ids: bool = True) -> BlockHashes:
    """Return a prompt as requests have it: its last token is never reused."""
    packed = pack_tokens(TOKENS[:tokens])
    return BlockHashes(packed[:-4], SIZE, ids=packed if ids else None)


def index_of(*events: Event, worker: WorkerId = A) -> KvIndex:
    index = KvIndex()
    for event in events:
        index.apply(worker, event)
    return index


def test_a_hit_ends_at_the_last_end_within_the_chain() -> None:
    index = index_of(Reuse(), chain(8), ends(2, 5, 9))
    index.apply(B, chain(6))

    assert index.find_hits(prompt()) == ([(6, (B,)), (5, (A,))], {A: 8})
    assert index.find_matches(prompt()) == {A: 5, B: 6}
    assert index.find_groups(prompt(17)) == [(4, (B,)), (2, (A,))]
    index.apply(WorkerId("c"), chain(3))
    assert index.find_groups(prompt()) == [(6, (B,)), (5, (A,)), (3, ("c",))]


def test_an_end_that_looks_ahead_needs_the_tokens_behind_it() -> None:
    keys = pack_hashes([end_key(5, 2), end_key(3, 2)])
    index = index_of(Reuse(2), chain(8), Stored(ROOT, keys, ENDS))
    other = pack_tokens([*TOKENS[:21], 99, 98])

    assert (index.find_matches(prompt()), index.find_matches(prompt(22))) == ({A: 5}, {A: 5})
    assert index.find_matches(prompt(21)) == {A: 3}
    assert index.find_matches(BlockHashes(other[:-4], SIZE, ids=other)) == {A: 3}


def test_ends_count_for_the_cap_and_no_lie_comes_of_it() -> None:
    index = KvIndex(64)
    index.apply(A, Reuse())
    for prompt_number in range(40):
        hashes = sequence_hashes([prompt_number] * 16, SIZE)
        index.apply(A, Stored(ROOT, pack_hashes(hashes)))
        index.apply(A, Stored(ROOT, pack_hashes(hashes[-1:]), ENDS))

    assert index.truncated(A)
    statistics = index.statistics()
    assert (statistics.blocks + statistics.ends <= 64, statistics.grouped) == (True, 1)
    assert index.find_matches(BlockHashes([39] * 16, SIZE)) == {A: 4}
    assert index.find_matches(BlockHashes([0] * 16, SIZE)) == {}


def test_rules_that_come_and_go_leave_nothing() -> None:
    index = index_of(Reuse(3), Reuse(3), Reuse(0, 1), Reuse(2))
    index.apply(B, Reuse(2))
    view = index.current_view()
    index.apply(B, Reuse(2))

    assert index.current_view() is view
    assert (index.ends.has_lookahead, list(index.ends.masks)) == (True, [Reuse(2)])
    index.apply(A, Reuse())
    index.apply(B, Cleared())
    assert (index.ends.has_lookahead, list(index.ends.masks)) == (False, [Reuse()])
    index.remove_worker(A)
    assert (index.ends.masks, index.ends.grouped, index.grouped) == ({}, 0, False)


def test_a_thousand_rules_of_a_worker_are_quick_beside_a_thousand_others() -> None:
    index = KvIndex()
    for number in range(1000):
        index.apply(WorkerId(f"w{number}"), Reuse(number % 60))
    before = process_time_ns()

    for number in range(1000):
        index.apply(A, Reuse(number % 7))
    assert ((process_time_ns() - before) / 1000) < 1000 * 100


def test_a_hit_at_the_end_of_a_chain_in_slower_memory_is_not_cut() -> None:
    lower = Stored(ROOT, pack_hashes(H[:8]), 1)
    index = index_of(Reuse(), chain(2), ends(2), lower, ends(8, tier=1))

    assert index.find_tier_matches(prompt()) == [{A: 2}, {A: 8}]
