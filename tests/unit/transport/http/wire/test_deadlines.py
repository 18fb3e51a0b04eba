from collections.abc import Callable
from itertools import pairwise

import pytest

from kvmesh.tasks import TASK
from kvmesh.transport.http.wire.deadlines import (
    LOOK_S,
    NEVER,
    REST_S,
    RESTING,
    DeadlineWheel,
    ForwardClock,
)
from tests.conftest import Contexts


class Loop:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> "Loop":
        self.due.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due and min(due for due, _ in self.due) <= end:
            self.due.sort(key=lambda due: due[0])
            self.now, callback = self.due.pop(0)
            callback()
        self.now = end


class Item:
    def __init__(self, deadline_s: float, again_s: float | None = None) -> None:
        self.deadline_s = deadline_s
        self.spoke = -1
        self.fired: list[float] = []
        self.again_s = again_s
        self.crashes: list[Exception] = []
        self.idle = False

    def is_idle(self) -> bool:
        return self.idle

    def on_deadline(self, now: float) -> None:
        self.fired.append(now)
        self.deadline_s = NEVER if self.again_s is None else now + self.again_s

    def crash(self, error: Exception) -> None:
        self.crashes.append(error)


def wheel_and_loop() -> tuple[DeadlineWheel, Loop]:
    loop = Loop()
    return DeadlineWheel(loop, tick_s=0.1, spokes=4), loop


def test_a_deadline_fires_once_and_at_most_a_round_late() -> None:
    wheel, loop = wheel_and_loop()
    items = [Item(101.0) for _ in range(10)]
    for item in items:
        wheel.add(item)

    loop.run(5)

    assert all(len(item.fired) == 1 for item in items)
    assert all(101.0 <= item.fired[0] <= 101.51 for item in items)


def test_a_deadline_may_be_moved_by_setting_it() -> None:
    wheel, loop = wheel_and_loop()
    item = Item(101.0)
    wheel.add(item)
    loop.run(0.5)

    item.deadline_s = 103.0
    loop.run(2)

    assert item.fired == []
    loop.run(2)
    assert len(item.fired) == 1


def test_a_wheel_without_items_does_not_turn() -> None:
    wheel, loop = wheel_and_loop()
    item = Item(NEVER)
    assert loop.due == []

    wheel.add(item)
    assert len(loop.due) == 1
    wheel.discard(item)
    wheel.discard(item)
    loop.run(1)

    assert loop.due == []
    assert len(wheel) == 0


def test_an_item_discarded_by_another_in_the_same_turn_does_not_fire() -> None:
    wheel, loop = wheel_and_loop()
    victims = [Item(100.0) for _ in range(8)]

    class Killer(Item):
        def on_deadline(self, now: float) -> None:
            super().on_deadline(now)
            for victim in victims:
                wheel.discard(victim)

    killers = [Killer(100.0) for _ in range(4)]
    for item in (*killers, *victims):
        wheel.add(item)

    loop.run(2)

    assert all(len(killer.fired) == 1 for killer in killers)
    assert sum(len(victim.fired) for victim in victims) <= 2


def test_an_item_that_fails_is_told_and_the_wheel_turns_on() -> None:
    wheel, loop = wheel_and_loop()

    class Failing(Item):
        def on_deadline(self, now: float) -> None:
            super().on_deadline(now)
            raise RuntimeError("planted")

    failing = [Failing(100.0) for _ in range(4)]
    others = [Item(100.0) for _ in range(4)]
    for item in (*failing, *others):
        wheel.add(item)

    loop.run(2)

    assert [str(error) for one in failing for error in one.crashes] == ["planted"] * 4
    assert all(len(one.fired) == 1 for one in others)


async def test_a_tick_that_fails_is_reported_and_does_not_stop_the_wheel(
    reported: Contexts,
) -> None:
    wheel, loop = wheel_and_loop()
    item = Item(101.0)
    wheel.add(item)

    def fail() -> None:
        wheel.on_tick = None
        raise RuntimeError("planted")

    wheel.on_tick = fail
    loop.run(5)

    assert len(item.fired) == 1
    assert [one[TASK] for one in reported] == ["deadline"]


def test_the_wheel_sleeps_while_all_its_items_are_idle() -> None:
    wheel, loop = wheel_and_loop()
    items = [Item(130.0) for _ in range(5)]
    for item in items:
        item.idle = True
        wheel.add(item)

    loop.run(2)
    before = wheel.now_s
    loop.run(REST_S / 2)

    assert all(item.spoke <= RESTING for item in items)
    assert len(wheel) == 5
    assert wheel.now_s - before <= REST_S
    assert [due - loop.now <= REST_S for due, _ in loop.due] == [True]


def test_an_idle_item_expires_and_one_that_is_woken_is_watched_again() -> None:
    wheel, loop = wheel_and_loop()
    idle, woken, gone = Item(110.0), Item(110.0), Item(110.0)
    for item in (idle, woken, gone):
        item.idle = True
        wheel.add(item)
    loop.run(2)

    wheel.wake(woken)
    woken.idle, woken.deadline_s = False, wheel.now_s + 0.5
    wheel.discard(gone)
    loop.run(1.5)

    assert len(woken.fired) == 1
    assert len(wheel) == 2
    loop.run(10)
    assert 110.0 <= idle.fired[0] <= 110.0 + REST_S
    assert gone.fired == []


def test_nothing_rests_that_is_due_soon_or_never_or_of_a_closed_wheel() -> None:
    wheel, loop = wheel_and_loop()
    soon, never = Item(101.9), Item(NEVER)
    soon.idle = never.idle = True
    wheel.add(soon)
    wheel.add(never)

    loop.run(1)

    assert min(soon.spoke, never.spoke) > RESTING
    late = Item(130.0)
    late.idle = True
    wheel.add(late)
    loop.run(2)
    assert late.spoke <= RESTING
    wheel.close()
    assert (late.spoke, len(wheel), loop.due) == (-1, 0, [])


def test_a_wheel_that_slept_turns_as_one_that_never_did() -> None:
    fired: list[list[float]] = []
    for idle in (False, True):
        wheel, loop = wheel_and_loop()
        stays, busy = Item(1000.0), Item(1000.0)
        stays.idle = busy.idle = idle
        wheel.add(stays)
        wheel.add(busy)
        loop.run(7.13)
        if idle:
            wheel.wake(busy)
        busy.deadline_s = wheel.now_s + 0.35
        loop.run(5)
        fired.append(busy.fired)

    assert len(fired[0]) == 1
    assert fired[0] == fired[1]


def test_a_long_sleep_is_made_up_for_at_once() -> None:
    wheel, loop = wheel_and_loop()
    item = Item(10_000.0)
    item.idle = True
    wheel.add(item)
    loop.run(2)
    loop.due.clear()
    loop.run(5000)

    wheel.wake(item)

    assert 0.0 <= loop.now - wheel.now_s <= 0.1 + 1e-6


class Kept:
    """What a clock drives: held or not."""

    def __init__(
        self, *, held: bool, patience_s: float = NEVER, comments_s: float | None = 12.0
    ) -> None:
        self.held, self._patience_s = held, patience_s
        self.loop = Loop()
        self.told: list[float] = []
        self.expired: list[float] = []
        wheel = DeadlineWheel(self.loop, tick_s=0.1, spokes=4)
        self.clock = ForwardClock(self, wheel, 40.0, comments_s)

    def comment(self, *, due: bool) -> bool:
        tells = due or (self.held and not self.told)
        if tells:
            self.told.append(self.loop.now - 100.0)
        return tells

    def patience_s(self) -> float:
        return self._patience_s

    def expire(self) -> None:
        self.expired.append(self.loop.now - 100.0)
        self.clock.stop()

    def crash(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("kept", "first_s", "then_s"),
    [
        (Kept(held=True), LOOK_S, 12.0),
        (Kept(held=False), 12.0, 12.0),
        (Kept(held=True, patience_s=9.0), LOOK_S, 3.0),
        (Kept(held=False, patience_s=9.0), 3.0, 3.0),
    ],
)
def test_comments_come_before_a_client_has_waited_for_a_byte_and_at_once_of_what_is_held(
    kept: Kept, first_s: float, then_s: float
) -> None:
    kept.loop.run(30.0)

    assert kept.told[0] == pytest.approx(first_s, abs=0.5)
    assert {round(b - a) for a, b in pairwise(kept.told)} == {round(then_s)}
    assert not kept.expired
    kept.loop.run(10.5)
    assert [round(at) for at in kept.expired] == [40]


def test_without_comments_there_is_only_the_deadline() -> None:
    kept = Kept(held=True, comments_s=None)

    assert kept.clock.deadline_s == kept.clock.expires_at_s == 140.0
    kept.loop.run(39.0)
    assert (kept.told, kept.expired) == ([], [])
