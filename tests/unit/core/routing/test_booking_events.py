from math import inf, nan

import pytest

from kvmesh.core.members.outcomes import Verdict
from kvmesh.core.routing.booking_events import (
    MAX_KIND,
    MOST_SECONDS,
    MOST_STATES,
    Ended,
    StateBegins,
    check_states,
)
from kvmesh.errors import CodecError


@pytest.mark.parametrize("number", [-1, len(Verdict), 1 << 40])
def test_a_verdict_of_a_newer_version_is_none(number: int) -> None:
    assert Ended("q", number, "odd").attempt().verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("reported", "counts"),
    [(nan, 0.0), (inf, 0.0), (-inf, 0.0), (-3.0, 0.0), (1e300, MOST_SECONDS), (7.5, 7.5)],
)
def test_figures_that_no_clock_shows_are_bounded(reported: float, counts: float) -> None:
    attempt = Ended("q", Verdict.WORKER, "x" * 1000, reported, reported).attempt()

    assert (attempt.lost_s, attempt.retry_after_s, attempt.kind) == (counts, counts, "x" * MAX_KIND)


def test_a_message_in_which_state_after_state_begins_is_refused() -> None:
    check_states([StateBegins()] * MOST_STATES)

    with pytest.raises(CodecError, match="begin 5 states in one message, at most 4"):
        check_states([StateBegins()] * (MOST_STATES + 1))
