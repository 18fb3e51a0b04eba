from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh_lab.analyze.advice import advise
from kvmesh_lab.analyze.reuse import CachePoint, Family, Reuse, measure_reuse
from kvmesh_lab.analyze.weight_advice import Advice, FleetSize
from kvmesh_lab.traces.trace import TraceRequest

SIZE = 16


def request(
    number: int, *blocks: int, tokens: int | None = None, at_s: float = 0.0
) -> TraceRequest:
    return TraceRequest(
        index=number,
        timestamp_ms=at_s * 1000.0,
        input_tokens=SIZE * len(blocks) if tokens is None else tokens,
        output_tokens=4,
        block_ids=blocks,
    )


def chats(turns: int, users: int, gap_s: float = 10.0) -> list[TraceRequest]:
    """Return chats that grow by a block a turn, the users taking turns."""
    return [
        request(turn * users + user, *range(1000 * user, 1000 * user + turn + 1),
                at_s=gap_s * turn + user * 0.1)
        for turn in range(turns)
        for user in range(users)
    ]  # fmt: skip


def test_a_chat_can_reuse_all_but_its_newest_turn() -> None:
    reuse = measure_reuse(chats(turns=4, users=1), SIZE)

    assert reuse.unlimited == pytest.approx((0 + 1 + 2 + 3) / (1 + 2 + 3 + 4))
    assert (reuse.core_blocks, reuse.distinct_blocks) == (3, 4)
    assert reuse.core_depth is not None
    assert reuse.core_depth.p50 == pytest.approx(2.5 * SIZE)
    assert reuse.gap_s is not None
    assert reuse.gap_s.p50 == pytest.approx(10.0)


def test_a_prompt_that_ends_inside_a_block_counts_only_its_tokens() -> None:
    reuse = measure_reuse([request(0, 1, 2, tokens=20), request(1, 1, 2, tokens=20)], SIZE)

    assert reuse.unlimited == pytest.approx(0.5)
    assert reuse.curve[-1].share == pytest.approx(0.5)


def test_what_is_never_shared_has_no_gaps_and_no_families() -> None:
    reuse = measure_reuse([request(number, number) for number in range(5)], SIZE)

    assert (reuse.unlimited, reuse.gap_s, reuse.families, reuse.core_blocks) == (0.0, None, (), 0)
    assert reuse.cache_for(0.9) == SIZE


def lru_share(requests: list[TraceRequest], blocks: int) -> float:
    """Return what one LRU cache hits, block by block: the slow way."""
    cache: OrderedDict[int, None] = OrderedDict()
    hit = total = 0
    for one in requests:
        total += one.input_tokens
        for block in one.block_ids:
            if block not in cache:
                break
            hit += SIZE
        for block in reversed(one.block_ids):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hit / total


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=40),
)
def test_the_curve_is_that_of_real_caches(shape: list[tuple[int, int]]) -> None:
    requests = [
        request(number, *range(100 * family, 100 * family + depth))
        for number, (family, depth) in enumerate(shape)
    ]

    reuse = measure_reuse(requests, SIZE)

    for point in reuse.curve:
        assert point.share == pytest.approx(lru_share(requests, point.tokens // SIZE))
    assert reuse.curve[-1].share == pytest.approx(reuse.unlimited)
    assert reuse.cache_for(1.1) is None or reuse.unlimited == 0.0


def advice(reuse: Reuse, workers: int = 8, cache_tokens: int = 0) -> list[Advice]:
    return advise(reuse, FleetSize(workers, cache_tokens))


def words(found: list[Advice]) -> str:
    return "\n".join(f"{one.what}: {one.why}" for one in found)


def reuse_of(**more: object) -> Reuse:
    """Return the reuse of a load of chats, changed."""
    known = measure_reuse(chats(turns=8, users=10), SIZE)
    return Reuse(**{name: getattr(known, name) for name in known.__struct_fields__} | more)


def test_without_reuse_load_is_all() -> None:
    (only,) = advice(measure_reuse([request(number, number) for number in range(9)], SIZE))

    assert only.what == "--router-mode least-loaded"
    assert "0.0%" in only.why


def test_chats_are_routed_by_cache_and_kept_together() -> None:
    text = words(advice(reuse_of()))

    assert "--router-mode kv --kv-cost predicted-time" in text
    assert "up to 4 with" in text
    assert "prefix-hash" in text
    assert "10 families" in text
    assert "--approx-ttl-s 30" in text


def test_one_worker_gains_nothing_from_routing() -> None:
    text = words(advice(reuse_of(), workers=1))

    assert "up to 0.0% of all prefill can be saved" in text
    assert "too few to split" in text


def test_a_dominant_family_is_not_split() -> None:
    assert "60% of all prompt tokens: split" in words(advice(reuse_of(families=(Family(9, 0.6),))))
    assert "no two requests begin alike" in words(advice(reuse_of(families=())))


def test_long_shared_prefixes_allow_large_blocks() -> None:
    deep = measure_reuse(
        [request(number, *range(999), number + 10_000, at_s=number) for number in range(3)], SIZE
    )

    assert "engine block size 128" in words(advice(deep))
    assert "engine block size 16" in words(advice(reuse_of()))


def test_cache_is_weighed_against_what_is_reused() -> None:
    curve = tuple(CachePoint(1000 << power, 0.2 * power) for power in range(5))
    load = reuse_of(curve=curve, unlimited=0.8)

    assert "16,000 tokens of KV cache in all" in words(advice(load))
    assert "no more KV cache" in words(advice(load, cache_tokens=2000))
    short = words(advice(load, cache_tokens=500))
    assert "4,000 tokens in 8 workers can hit 40.0%, 16,000 would hit 76.0%" in short
