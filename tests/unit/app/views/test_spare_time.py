import asyncio

import pytest

from kvmesh.app.views import spare_time
from kvmesh.app.views.spare_time import LEAST_UNITS, MOST_S, SHARE, SLICE_S, SpareTime


class Worker:
    """Work that takes `unit_s` of a clock of its own for each unit."""

    def __init__(self, units: int, unit_s: float) -> None:
        self.left = units
        self.unit_s = unit_s
        self.now = 0.0
        self.slices: list[int] = []

    def work(self, units: int) -> bool:
        done = min(units, self.left)
        self.left -= done
        self.now += done * self.unit_s
        self.slices.append(units)
        return not self.left

    def timer(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_time, "PAUSE_S", 0.0)


def test_little_work_is_done_at_once() -> None:
    worker = Worker(10, 1e-7)

    assert asyncio.run(SpareTime(worker.work, worker.timer).catch_up())
    assert worker.left == 0


def test_much_work_takes_no_more_than_its_share_of_the_time() -> None:
    worker = Worker(1 << 40, 1e-6)
    spare = SpareTime(worker.work, worker.timer)

    assert not asyncio.run(spare.catch_up())
    first_s = worker.now
    spent_s = 0.0
    for _ in range(1000):
        worker.now += 0.1
        began_s = worker.now
        asyncio.run(spare.catch_up())
        spent_s += worker.now - began_s

    assert first_s < MOST_S + 2 * SLICE_S + SHARE * MOST_S
    assert spent_s <= SHARE * (worker.now - first_s) + SLICE_S
    worker.now += 10.0
    began_s = worker.now
    asyncio.run(spare.catch_up())
    assert worker.now - began_s < MOST_S + 2 * SLICE_S + SHARE * MOST_S, "a second is saved up"


def test_a_slice_grows_and_shrinks_with_what_it_takes() -> None:
    worker = Worker(1 << 40, 1e-8)
    spare = SpareTime(worker.work, worker.timer)
    asyncio.run(spare.catch_up())
    grown = worker.slices[-1]
    worker.unit_s = 1e-3
    for _ in range(2000):
        worker.now += 1e4
        asyncio.run(spare.catch_up())

    assert worker.slices[0] == LEAST_UNITS
    assert SLICE_S / 4 <= grown * 1e-8 <= SLICE_S
    assert worker.slices[-1] == LEAST_UNITS
