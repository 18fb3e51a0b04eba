from collections.abc import Sequence

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_speeds
from tests.reference.workers.relative_speed import EXPLAINED, KEPT

TOKEN_MS = 20.0


class Fleet:
    """Workers that answer at a pace each, and what is learned of them."""

    def __init__(self, *paces: float) -> None:
        self.paces = {WorkerId(f"w{number}"): pace for number, pace in enumerate(paces)}
        self.speeds = new_speeds()

    def answer(self, name: str, tokens: int = 100, *, times: int = 1) -> None:
        worker = WorkerId(name)
        ms = self.paces[worker] * TOKEN_MS * tokens
        for _ in range(times):
            self.speeds.answered(worker, tokens, ms / 1000.0)

    def answer_all(self, times: int) -> None:
        for _ in range(times):
            for worker in self.paces:
                self.answer(worker)

    def slow(self) -> list[float]:
        return [self.speeds.prefill_ratio(name).slow_ms / TOKEN_MS for name in self.paces]


@pytest.mark.parametrize(
    ("paces", "slow"),
    [
        ((1.0, 1.0), [0.0, 0.0]),
        ((10.0, 1.0), [10.0 - EXPLAINED, 0.0]),
        ((10.0, 1.0, 1.0, 1.0), [10.0 - EXPLAINED, 0.0, 0.0, 0.0]),
        ((EXPLAINED, 1.0, 1.5), [0.0, 0.0, 0.0]),
        # Half of them slow: that is what is usual. More than half: so much the more.
        ((10.0, 10.0, 1.0, 1.0), [7.0, 7.0, 0.0, 0.0]),
        ((10.0, 10.0, 1.0), [0.0, 0.0, 0.0]),
        ((10.0,), [0.0]),
        ((5.0, 5.0, 5.0), [0.0, 0.0, 0.0]),
    ],
)
def test_who_is_slow_beyond_what_load_explains(paces: Sequence[float], slow: list[float]) -> None:
    fleet = Fleet(*paces)

    fleet.answer_all(KEPT - 1)
    too_few = fleet.slow()
    fleet.answer_all(1)

    assert too_few == [0.0] * len(paces)
    assert fleet.slow() == pytest.approx(slow)


def test_one_quick_answer_shows_that_a_worker_can_be_quick() -> None:
    fleet = Fleet(10.0, 1.0)
    fleet.answer_all(KEPT)

    fleet.paces[WorkerId("w0")] = 1.0
    fleet.answer("w0")

    assert fleet.slow() == [0.0, 0.0]


def test_one_slow_answer_shows_nothing() -> None:
    fleet = Fleet(1.0, 1.0)
    fleet.answer_all(KEPT)

    fleet.paces[WorkerId("w0")] = 50.0
    fleet.answer("w0", times=KEPT - 1)
    before = fleet.slow()
    fleet.answer("w0")

    assert before == [0.0, 0.0]
    assert fleet.slow()[0] > 40.0


def test_answers_that_came_at_once_or_without_tokens_show_nothing() -> None:
    fleet = Fleet(10.0, 0.02)

    fleet.answer_all(KEPT)
    fleet.speeds.answered(WorkerId("w1"), 0, 0.1)

    assert fleet.slow() == [0.0, 0.0]


def test_a_fixed_time_does_not_make_short_answers_slow() -> None:
    speeds, names = new_speeds(), [WorkerId("short"), WorkerId("long")]

    for number in range(40):
        for name, tokens in zip(names, (1 + number % 3, 200 + 10 * (number % 7)), strict=True):
            speeds.answered(name, tokens, (800.0 + TOKEN_MS * tokens) / 1000.0)

    assert [speeds.prefill_ratio(name).slow_ms for name in names] == [0.0, 0.0]
    assert speeds.answer_tokens(10) == pytest.approx(10 + 40, rel=0.15)


def test_an_answer_of_unknown_length_counts_as_the_mean() -> None:
    fleet = Fleet(1.0)
    fleet.answer("w0", 50)
    fleet.answer("w0", 70)

    assert fleet.speeds.answer_tokens(7) == 7.0
    assert fleet.speeds.answer_tokens(0) == pytest.approx(50 + 0.05 * 20)


def test_who_gets_no_request_is_doubted_less_and_less_and_its_next_answer_decides() -> None:
    fleet = Fleet(10.0, 1.0)
    fleet.answer_all(KEPT)
    seen = [fleet.slow()[0]]
    while fleet.slow()[0]:
        fleet.answer("w1")
        seen += [fleet.slow()[0]] * (fleet.slow()[0] != seen[-1])

    # 10, 5.5 and 3.25 times the usual; the next half is explained.
    assert seen == pytest.approx([7.0, 2.5, 0.25, 0.0])
    fleet.answer("w0")
    assert fleet.slow()[0] == pytest.approx(7.0)


def test_who_recovered_while_it_got_no_request_is_believed_at_once() -> None:
    fleet = Fleet(10.0, 1.0)
    fleet.answer_all(KEPT)
    fleet.answer("w1", times=64 * 3)
    fleet.paces[WorkerId("w0")] = 1.0

    fleet.answer("w0")
    fleet.answer("w1", times=64 * 3)

    assert fleet.slow() == [0.0, 0.0]


def test_of_whom_too_little_is_known_nothing_is_doubted() -> None:
    fleet = Fleet(10.0, 1.0)
    fleet.answer("w0", times=KEPT - 1)
    fleet.answer("w1", times=64 * 5)

    fleet.answer("w0")

    assert fleet.slow()[0] == pytest.approx(7.0)


def test_in_a_large_fleet_all_are_compared_now_and_then() -> None:
    fleet = Fleet(*[1.0] * 39, 10.0)
    fleet.answer_all(KEPT)
    fleet.answer("w0", times=10)

    assert fleet.slow() == pytest.approx([0.0] * 39 + [7.0])


def test_a_removed_worker_is_forgotten() -> None:
    fleet = Fleet(10.0, 1.0, 1.0)
    fleet.answer_all(KEPT)
    for name in ("w0", "w0", "w1"):
        fleet.speeds.remove_worker(WorkerId(name))

    fleet.answer("w2")
    fleet.answer("w0", times=KEPT - 1)

    assert fleet.slow() == [0.0, 0.0, 0.0]
