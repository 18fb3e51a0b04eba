"""The agenda against a list that is looked through whenever something is taken."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh_lab.simulator.fleet.agenda import Agenda


@given(st.lists(st.integers(0, 9) | st.none(), max_size=60))
def test_entries_come_by_time_and_those_of_one_time_in_the_order_they_were_made(
    steps: list[int | None],
) -> None:
    agenda = Agenda[int]()
    naive: list[tuple[float, int]] = []

    for number, time_s in enumerate(steps):
        if time_s is not None:
            agenda.enter(float(time_s), -number)
            naive.append((float(time_s), number))
        elif naive:
            first = min(naive)
            naive.remove(first)
            assert agenda.take() == (first[0], -first[1])
        assert agenda.next_s() == min((time for time, _ in naive), default=inf)


def test_nothing_can_be_taken_out_of_an_empty_agenda() -> None:
    with pytest.raises(IndexError):
        Agenda[int]().take()
