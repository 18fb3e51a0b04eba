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


def test_an_answer_of_unknown_length_counts_as_the_mean() -> None:
    fleet = Fleet(1.0)
    fleet.answer("w0", 50)
    fleet.answer("w0", 70)

    assert fleet.speeds.answer_tokens(7) == 7.0
    assert fleet.speeds.answer_tokens(0) == pytest.approx(50 + 0.05 * 20)


def test_a_removed_worker_is_forgotten() -> None:
    fleet = Fleet(10.0, 1.0, 1.0)
    fleet.answer_all(KEPT)
    for name in ("w0", "w0", "w1"):
        fleet.speeds.remove_worker(WorkerId(name))

    fleet.answer("w2")
    fleet.answer("w0", times=KEPT - 1)

    assert fleet.slow() == [0.0, 0.0, 0.0]
