"""The seconds that are kept against a model that keeps all and looks through them."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import Totals
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.traffic import TrafficSecond

KEPT_S = 10


@given(steps=st.lists(st.integers(-3, 12), max_size=40), since=st.integers(900, 1500))
def test_the_newest_seconds_are_kept_in_order(steps: list[int], since: int) -> None:
    totals = Totals(KEPT_S, SECONDS, TOKENS)
    naive: dict[int, int] = {}
    second = 1000

    for step in steps:
        second += step
        totals.refused(second + 0.5)
        if second not in naive:
            naive = {one: count for one, count in naive.items() if one > second - KEPT_S}
        naive[second] = naive.get(second, 0) + 1

    seconds = [TrafficSecond(*row) for row in totals.rows(since)]
    found = [(one.second, one.refused) for one in seconds]
    assert found == [(one, naive[one]) for one in sorted(naive) if one >= since]
