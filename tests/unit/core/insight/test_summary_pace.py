from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.summary_pace import SummaryPace


def test_the_first_change_is_told_soon_and_further_ones_seldom() -> None:
    pace = SummaryPace(settle_s=2.0, every_s=60.0)

    reported = [second for second in range(200) if pace.due(float(second), changed=second >= 10)]

    assert reported == [12, 72, 132, 192]


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.booleans()), max_size=60))
def test_summaries_never_come_closer_than_their_pace(steps: list[tuple[float, bool]]) -> None:
    pace, now, reported = SummaryPace(settle_s=2.0, every_s=60.0), 0.0, list[float]()
    for pause, changed in steps:
        now += pause
        if pace.due(now, changed=changed):
            reported.append(now)

    assert all(later >= earlier + 60.0 for earlier, later in pairwise(reported))
