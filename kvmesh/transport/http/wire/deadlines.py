"""One timer for all connections: each carries its deadline as an attribute, a wheel looks.

Setting a deadline is one attribute store, so a stream may push its idle deadline on every chunk.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

from kvmesh.tasks import guarded

NEVER: Final = math.inf
REST_S: Final = 1.0
FAR_S: Final = 2.0
"""An item with less to its deadline does not rest."""

LOOK_S: Final = 0.25
"""After so long it is seen whether a request is held: of most an answer has begun."""

RESTING: Final = -2
"""The `spoke` of an item at rest is this, less the spoke it will be on again."""

_MOST_TURNS: Final = 4096
"""Turns that are made up for one by one, so that the clock is as if they had been."""


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class TimerLoop(Protocol):
    """What a wheel needs of an event loop."""

    def time(self) -> float:
        """Return the loop's clock, seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call `callback` after `delay` seconds."""
        ...


class Timed(Protocol):
    """Something with a deadline. `spoke` belongs to the wheel; -1: not on it, below: at rest."""

    deadline_s: float
    spoke: int

    def on_deadline(self, now: float) -> None:
        """Act: the deadline passed. Set a new one, or it is called again next round."""
        ...

    def is_idle(self) -> bool:
        """Return whether nothing but its deadline is to come until it calls the wheel's `wake`."""
        ...

    def crash(self, error: Exception) -> None:
        """Give up for what `on_deadline` raised. Must not raise."""
        ...


class DeadlineWheel:
    """Looks at 1/`spokes` of its items each tick, so at each item once per round; at those found
    idle once in `REST_S`, until `wake`, so that a process without requests sleeps.

    `now_s` is the loop's clock as of the last tick: never ahead, at most a tick behind while an
    item is not idle. A deadline set from it fires between one tick early and one round late, that
    of an idle item up to `REST_S` late. O(items) per round, 0.1 us each.
    """

    def __init__(
        self,
        loop: TimerLoop,
        *,
        tick_s: float = 0.1,
        spokes: int = 4,
    ) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._spokes: list[set[Timed]] = [set() for _ in range(spokes)]
        self._hand = 0
        self._next_spoke = 0
        self._count = 0
        self.on_tick: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._resting: set[Timed] = set()
        self._rest_timer: Timer | None = None
        self.now_s = self._turned_s = loop.time()

    def __len__(self) -> int:
        return self._count + len(self._resting)

    def add(self, item: Timed, spoke: int | None = None) -> None:
        """Watch `item` until `discard`, at `spoke`, None: at the next; the wheel only turns while
        it has items.
        """
        if spoke is None:
            spoke = self._next_spoke = (self._next_spoke + 1) % len(self._spokes)
        item.spoke = spoke
        self._spokes[spoke].add(item)
        self._count += 1
        if self._timer is None and self._resting:
            self._catch_up()
        elif self._timer is None:
            self.now_s = self._loop.time()
            if self.on_tick is not None:
                self.on_tick()
            self._timer = self._loop.call_later(self._tick_s, self._turn)

    def wake(self, item: Timed) -> None:
        """Watch an item at rest as often as any: call it when its `spoke` is at most `RESTING`,
        before a deadline is set from `now_s`.
        """
        self.add(item, RESTING - item.spoke)
        self._resting.discard(item)

    def _catch_up(self) -> None:
        """Stand as if the wheel had turned all the time."""
        now = self._loop.time()
        turns = int((now - self._turned_s) / self._tick_s)
        self._hand = (self._hand + turns) % len(self._spokes)
        if turns > _MOST_TURNS:
            self._turned_s += turns * self._tick_s
        else:
            for _ in range(turns):
                self._turned_s += self._tick_s
        self.now_s = self._turned_s
        if self.on_tick is not None:
            self.on_tick()
        self._timer = self._loop.call_later(self._turned_s + self._tick_s - now, self._turn)

    def discard(self, item: Timed) -> None:
        """Forget `item`; no error when it is not watched."""
        if item.spoke <= RESTING:
            self._resting.discard(item)
            item.spoke = -1
        elif item.spoke >= 0:
            self._spokes[item.spoke].discard(item)
            item.spoke = -1
            self._count -= 1

    def close(self) -> None:
        """Stop turning and forget all items."""
        for timer in (self._timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest_timer = None
        for spoke in (*self._spokes, self._resting):
            for item in spoke:
                item.spoke = -1
            spoke.clear()
        self._count = 0

    def _turn(self) -> None:
        self._timer = None
        self.now_s = self._turned_s = now = self._loop.time()
        self._hand = (self._hand + 1) % len(self._spokes)
        if self.on_tick is not None:
            guarded("deadline", self.on_tick)()
        spoke, far_s = self._spokes[self._hand], now + FAR_S
        for item in [item for item in spoke if item.deadline_s <= now]:
            if item.spoke >= 0:
                self._expire(item, now)
        for item in [one for one in spoke if far_s < one.deadline_s < NEVER and one.is_idle()]:
            self._rest(item)
        if self._count and self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._turn)

    def _rest(self, item: Timed) -> None:
        spoke = item.spoke
        self.discard(item)
        item.spoke = RESTING - spoke
        self._resting.add(item)
        if self._rest_timer is None:
            self._rest_timer = self._loop.call_later(REST_S, self._turn_resting)

    def _turn_resting(self) -> None:
        self._rest_timer = None
        now = self._loop.time()
        for item in [item for item in self._resting if item.deadline_s <= now]:
            if item.spoke <= RESTING:
                self._expire(item, now)
        if self._resting:
            self._rest_timer = self._loop.call_later(REST_S, self._turn_resting)

    def _expire(self, item: Timed, now: float) -> None:
        try:
            item.on_deadline(now)
        except Exception as error:  # noqa: BLE001  one item's bug must not stop the wheel for all
            item.crash(error)


class Timekept(Protocol):
    """What the clock drives."""

    def expire(self) -> None:
        """Give up: the deadline has passed."""
        ...

    def comment(self, *, due: bool) -> bool:
        """Send a sign of life if it is `due`, or if the request is held and nothing was sent yet;
        return whether one was sent.
        """
        ...

    def patience_s(self) -> float:
        """Return for how long the client waits for a byte; infinite: untold."""
        ...

    def crash(self, error: Exception) -> None:
        """Give up for an error of ours. Must not raise."""
        ...


class ForwardClock:
    """The times of one forwarded exchange: its deadline, and comments while it waits.

    Calls `expire` once, `deadline_s` from now. Until then `comment` is due each `comments_s`, or
    each third of the client's patience; it is asked for the first time after `LOOK_S`. With
    `deadline_s` set to `expires_at_s` there are no more comments.
    """

    __slots__ = (
        "_comments_s",
        "_kept",
        "_told_s",
        "_wheel",
        "deadline_s",
        "expires_at_s",
        "spoke",
    )

    def __init__(
        self,
        kept: Timekept,
        wheel: DeadlineWheel,
        deadline_s: float | None,
        comments_s: float | None,
    ) -> None:
        self.spoke = -1
        self._kept = kept
        self._wheel = wheel
        self._comments_s = NEVER if comments_s is None else comments_s
        wheel.add(self)
        self.expires_at_s = NEVER if deadline_s is None else wheel.now_s + deadline_s
        self._told_s = now = wheel.now_s
        first_s = NEVER if comments_s is None else now + min(comments_s, LOOK_S)
        self.deadline_s = min(self.expires_at_s, first_s)

    def is_idle(self) -> bool:
        """Return False: a request waits."""
        return False

    def stop(self) -> None:
        """Watch no longer."""
        self._wheel.discard(self)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        if now >= self.expires_at_s:
            self._kept.expire()
            return
        comments_s = min(self._comments_s, self._kept.patience_s() / 3)
        if self._kept.comment(due=now >= self._told_s + comments_s):
            self._told_s = now
        # Not told although it was due: it is asked again at the next look.
        self.deadline_s = min(self.expires_at_s, self._told_s + comments_s)

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self.stop()
        self._kept.crash(error)
