import contextlib
import signal
import threading
import time

import pytest

from kvmesh.app.serve.formula_limit import TimeLimit, time_limit
from kvmesh.core.cost.own import FormulaTimeout, no_guard


def endless() -> None:
    while True:
        pass


def stubborn() -> None:
    """Catch what may be caught, and go on."""
    while True:
        with contextlib.suppress(Exception):
            endless()


@pytest.mark.parametrize("loop", [endless, stubborn, lambda: time.sleep(30.0)])
def test_an_endless_loop_is_ended(loop: object) -> None:
    limit = TimeLimit()
    began = time.monotonic()

    for _ in range(3):
        with pytest.raises(FormulaTimeout):
            limit(loop, 0.02)  # type: ignore[arg-type]  # all are called

    assert time.monotonic() - began < 20.0


def test_what_swallows_its_end_once_is_ended_all_the_same() -> None:
    caught = 0

    def swallow() -> None:
        nonlocal caught
        try:
            endless()
        except FormulaTimeout:
            caught += 1
        endless()

    with pytest.raises(FormulaTimeout):
        TimeLimit()(swallow, 0.02)
    assert caught == 1


def test_errors_pass_and_another_s_alarm_is_left_to_it() -> None:
    received: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, _: received.append(number))
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    limit = TimeLimit()

    with pytest.raises(ZeroDivisionError):
        limit(lambda: 1 / 0, 1.0)

    assert signal.getitimer(signal.ITIMER_REAL)[0] == pytest.approx(100.0, abs=20.0)
    signal.raise_signal(signal.SIGALRM)
    assert received == [signal.SIGALRM]


def test_a_process_has_one_limit() -> None:
    first = time_limit()

    assert time_limit() is first
    with pytest.raises(FormulaTimeout):
        first(endless, 0.02)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    another = time_limit()
    signal.raise_signal(signal.SIGALRM)  # nobody's
    assert another is not first
    with pytest.raises(FormulaTimeout):
        another(endless, 0.02)


def test_other_threads_have_no_signals() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(time_limit()))
    thread.start()
    thread.join()

    assert found == [no_guard]
    assert isinstance(time_limit(), TimeLimit)
