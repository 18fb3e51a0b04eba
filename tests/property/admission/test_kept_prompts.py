"""Prompts kept for newcomers: bounds, and what a tenant keeps whatever the others send."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.warming.kept_prompts import KeptOptions, KeptPrompts, Sent
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts

SIZE = 16
BLOCKS = 20
OPTIONS = KeptOptions(most=12, most_bytes=12_000)
TENANTS = 4
FAIR = OPTIONS.most // TENANTS
FAIR_BYTES = OPTIONS.most_bytes // TENANTS
EACH = BLOCKS * SIZE

adds = st.lists(
    st.tuples(st.integers(1, TENANTS - 1), st.integers(1, OPTIONS.most_bytes_each)), max_size=60
)
"""(tenant, bytes) of prompts of others, each another one."""


def keep(kept: KeptPrompts[str], which: int, tenant: int, size: int) -> None:
    hashes = BlockHashes.of([which * 1000 + n for n in range(BLOCKS)], SIZE)
    kept.add(hashes, Sent(str(which), size, str(tenant)), SIZE, float(which))


@given(
    own=st.lists(st.integers(1, FAIR_BYTES // FAIR), min_size=1, max_size=FAIR),
    before=adds,
    behind=adds,
)
def test_a_tenant_with_its_share_at_most_loses_nothing(
    own: list[int], before: list[tuple[int, int]], behind: list[tuple[int, int]]
) -> None:
    kept = KeptPrompts[str](OPTIONS)
    sent = [*before, *((0, size) for size in own), *behind]
    for which, (tenant, size) in enumerate(sent):
        keep(kept, which, tenant, size)
        all_of = [one.sent for one in kept.prompts()]
        assert len(all_of) == len(kept) <= OPTIONS.most
        assert sum(one.size for one in all_of) == kept.size <= OPTIONS.most_bytes

    mine = [one.what for one in kept.prompts() if one.sent.tenant == "0"]
    assert mine == [str(len(before) + n) for n in range(len(own))]


@given(junk=st.integers(1, 200), repeats=st.integers(1, 4), budget=st.integers(0, 20))
def test_a_tenant_s_junk_takes_no_more_than_its_share_of_a_newcomer(
    junk: int, repeats: int, budget: int
) -> None:
    kept = KeptPrompts[str](OPTIONS)
    for which in range(FAIR):
        keep(kept, which, 0, 1)
    for which in range(FAIR, FAIR + junk):
        for _ in range(repeats):
            keep(kept, which, 1, 1)
    candidates = [Candidate(one, 0, 0) for one in kept.prompts()]
    bounds = WarmBounds(tokens=budget * EACH, room=1 << 30, least_rate=0.0)

    plan = plan_prompts(kept.rates(1000.0), candidates, 1, SIZE, bounds)

    own = sum(one.sent.tenant == "0" for one, _ in plan)
    assert sum(tokens for _, tokens in plan) <= bounds.tokens
    assert own >= min(FAIR, budget // 2)
