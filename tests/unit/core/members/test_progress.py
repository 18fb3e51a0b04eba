import pytest

from kvmesh.core.members.progress import (
    HANG_S,
    LAG_S,
    MOST_PACE_S,
    PACES,
    Due,
    EngineReading,
    Progress,
)

W, X, Y = "w", "x", "y"


def busy(computed: int | None, used: int = 4, waiting: int = 0) -> EngineReading:
    return EngineReading(computed, running=1, waiting=waiting, used_blocks=used)


def idle(computed: int, waiting: int = 0) -> EngineReading:
    return EngineReading(computed, waiting=waiting)


NOW = Due(0.0)


class Fleet:
    """Engines whose readings come each second."""

    def __init__(self, hang_s: float = HANG_S) -> None:
        self.served: dict[str, float] = {}
        self.progress = Progress(lambda worker: self.served.get(worker, float("-inf")), hang_s)

    def read(self, worker: str, reading: EngineReading, since: int, until: int) -> None:
        for second in range(since, until + 1):
            self.progress.report(worker, reading, float(second))

    def work(self, worker: str, since: int, until: int) -> None:
        """Have it generate a token each second."""
        for second in range(since, until + 1):
            self.progress.report(worker, busy(1000 + second), float(second))

    def stalled(self, worker: str, now: float, due: Due = NOW, byte_s: float = -1.0) -> bool:
        return self.progress.is_stalled(worker, [due], now, byte_s=byte_s)


def test_an_engine_that_stands_still_with_requests_hangs() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(1010), 11, 16)

    assert not fleet.stalled(W, 10.0 + HANG_S)
    assert fleet.stalled(W, 10.1 + HANG_S)
    assert not fleet.stalled("unknown", 100.0)
    unread = Fleet()
    unread.work(W, 0, 10)
    unread.read(W, busy(1010), 11, 12)
    assert not unread.stalled(W, 20.0), "the last reading is of the first half"


def test_published_events_show_progress() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(1010), 11, 20)
    fleet.progress.shown(W, 20.0)
    fleet.progress.shown("unknown", 20.0)
    fleet.read(W, busy(1010), 21, 24)

    assert not fleet.stalled(W, 24.5)


def test_a_request_that_has_just_come_to_an_idle_engine_is_given_its_time() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, idle(1010), 11, 104)

    assert not fleet.stalled(W, 104.9, Due(100.0))
    fleet.read(W, busy(1010), 105, 108)
    assert not fleet.stalled(W, 109.9, Due(100.0))
    fleet.read(W, busy(1010), 109, 111)
    assert fleet.stalled(W, 111.0, Due(100.0))


def test_an_engine_that_lets_a_request_wait_and_runs_none_waits_itself() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, idle(1010, waiting=1), 11, 200)

    assert not fleet.stalled(W, 200.0, Due(100.0))


def test_the_first_request_may_compile_for_minutes() -> None:
    fleet = Fleet()
    fleet.read(W, busy(0), 0, 300)

    assert not fleet.stalled(W, 300.5)


def test_readings_that_have_ended_show_nothing() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(1010), 11, 11)

    assert not fleet.stalled(W, 60.0)


def test_an_engine_that_began_anew_may_compile_again() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(0), 11, 80)

    assert not fleet.stalled(W, 80.0)
    fleet.read(W, busy(3), 81, 87)
    assert fleet.stalled(W, 87.0)


def test_counters_that_stand_still_though_answers_come_are_not_believed() -> None:
    fleet = Fleet()
    fleet.read(W, busy(1000), 0, 10)
    fleet.served[W] = 10.0
    fleet.read(W, busy(1000), 11, 11 + int(LAG_S))
    fleet.read(W, busy(1000), 20, 60)

    assert not fleet.stalled(W, 60.0)

    fleet.read(W, busy(1001), 61, 67)
    assert fleet.stalled(W, 67.0), "until they move again"


def test_most_of_the_fleet_standing_still_is_a_slow_fleet() -> None:
    fleet = Fleet()
    for worker in (W, X, Y):
        fleet.work(worker, 0, 10)
        fleet.read(worker, busy(1010), 11, 30)

    assert not fleet.stalled(W, 30.0)


@pytest.mark.parametrize("others", ["at work", "idle"])
def test_one_that_stands_still_alone_is_found_as_soon_as_ever(others: str) -> None:
    fleet = Fleet()
    for worker in (W, X, Y):
        fleet.work(worker, 0, 10)
    fleet.read(W, busy(1010), 11, 16)
    for worker in (X, Y):
        if others == "at work":
            fleet.work(worker, 11, 16)
        else:
            fleet.read(worker, idle(1010), 11, 16)

    assert fleet.stalled(W, 15.5)


def test_a_fleet_that_stands_still_for_minutes_is_sick_all_the_same() -> None:
    fleet = Fleet()
    for worker in (W, X):
        fleet.work(worker, 0, 10)
        fleet.read(worker, busy(1010), 11, 200)

    assert not fleet.stalled(W, 10.0 + HANG_S + PACES * MOST_PACE_S)
    assert fleet.stalled(W, 10.1 + HANG_S + PACES * MOST_PACE_S)


def test_an_engine_that_stood_still_and_went_on_is_given_longer_for_a_while() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(1010), 11, 17)
    fleet.work(W, 18, 18)
    fleet.read(W, busy(1018), 19, 40)

    assert not fleet.stalled(W, 18.0 + HANG_S + PACES * 8.0)
    assert fleet.stalled(W, 18.1 + HANG_S + PACES * 8.0)

    fleet.work(W, 41, 120)
    fleet.read(W, busy(1120), 121, 127)
    assert fleet.stalled(W, 127.0)


def test_the_prefill_of_a_long_prompt_takes_its_time() -> None:
    fleet = Fleet()
    fleet.work(W, 0, 10)
    fleet.read(W, busy(1010), 11, 40)

    assert not fleet.stalled(W, 10.0 + HANG_S + 20.0, Due(0.0, prefill_s=20.0))
    assert fleet.stalled(W, 10.1 + HANG_S + 20.0, Due(0.0, prefill_s=20.0))


def test_an_engine_without_counters_is_never_judged() -> None:
    fleet = Fleet()
    fleet.read(W, busy(None), 0, 3000)

    assert not fleet.stalled(W, 3000.0)
    assert fleet.progress.moved_s(W) == 0.0
