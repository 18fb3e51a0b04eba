"""The asyncio driver: runs actors for real, carries their wishes out, stops at the first fault."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from kvmesh.actors.kernel import Actor, Append, Effect, Log, Message, Publish, Send, Wake
from kvmesh.actors.messages import Appended, BusMessage, Started
from kvmesh.ports import Bus, Journal
from kvmesh.tasks import near

Carrier = Callable[[str, Effect], None]
"""Carries out one effect for the named actor; answers, if any, come by `AioDriver.answer`."""


class MailboxStatistics(msgspec.Struct, frozen=True):
    """One actor: messages waiting, handled, refused because the mailbox was full."""

    waiting: int
    handled: int
    refused: int


class DriverStatistics(msgspec.Struct, frozen=True):
    """All mailboxes, and turns that ended in an exception (at most one: it stops the driver)."""

    mailboxes: Mapping[str, MailboxStatistics]
    faults: int
    timers: int


class _Mailbox:
    """One actor's queue. `capacity` bounds what comes from outside the process.

    When it is full, `post` refuses (heartbeats, loads: the next one says the same) and `press`
    makes the producer wait by running turns on its time (journal, engine events: none may be lost).
    The actors' own messages and answers always enter: timers and windows in flight bound them.
    """

    __slots__ = ("actor", "capacity", "handled", "queue", "ready", "refused")

    def __init__(self, actor: Actor, capacity: int) -> None:
        self.actor = actor
        self.capacity = capacity
        self.queue: deque[Message] = deque()
        self.ready = False
        self.handled = 0
        self.refused = 0


class AioDriver:
    """Delivers messages one at a time, in order per actor, all actors on one event loop.

    Turns run in slices of `slice_s`, so that sockets are served in between. What the journal, an
    engine or an answer brings while nothing waits has its turn at once, for a slice at most: that
    saves a turn of the event loop a message. An exception of an actor is a bug: it is logged and
    counted, the driver stops, and `run` raises it. An effect that nothing carries is a bug, too.
    """

    def __init__(
        self,
        *,
        journal: Journal | None = None,
        bus: Bus | None = None,
        log: Callable[[Log], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        slice_s: float = 0.002,
    ) -> None:
        self._log = log
        self._clock = clock
        self._slice_s = slice_s
        self._boxes: dict[str, _Mailbox] = {}
        self._ready: deque[_Mailbox] = deque()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._next_timer = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._in_turn = False
        self._at_once_until_s = 0.0
        self._stopped: asyncio.Future[None] | None = None
        self._faults = 0
        self._carriers: dict[type[Effect], Carrier] = {
            Send: self._carry_send,
            Wake: self._carry_wake,
            Log: self._carry_log,
        }
        if bus is not None:
            self._carriers[Publish] = partial(_carry_publish, bus)
        if journal is not None:
            self._carriers[Append] = partial(self._carry_append, journal)

    def add(self, actor: Actor, *, capacity: int = 8192) -> None:
        """Give `actor` a mailbox under its name. Before `start`."""
        self._boxes[actor.name] = _Mailbox(actor, capacity)

    def carry(self, kind: type[Effect], carrier: Carrier) -> None:
        """Have effects of that kind carried out by `carrier`."""
        self._carriers[kind] = carrier

    def start(self) -> None:
        """Begin to deliver, on the running event loop; each actor gets `Started` first."""
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        for box in self._boxes.values():
            box.queue.appendleft(Started())
            self._wake(box)

    async def run(self) -> None:
        """Start if need be and wait for `stop`; raise what an actor raised."""
        if self._stopped is None:
            self.start()
        assert self._stopped is not None
        await asyncio.shield(self._stopped)

    def stop(self) -> None:
        """Deliver nothing more and forget all timers; safe to call twice, or in a turn."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        for box in self._boxes.values():
            box.queue.clear()
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def post(self, to: str, message: Message) -> bool:
        """Queue a message from outside; False when refused: the mailbox is full or stopped."""
        box = self._boxes[to]
        if len(box.queue) >= box.capacity or self._is_stopped():
            box.refused += 1
            return False
        self._put(box, message)
        return True

    def press(self, to: str, message: Message) -> None:
        """Take a message that must not be lost: with a full mailbox, run its oldest turn first.

        From the event loop, outside of turns: journal tails, event sources.
        """
        box = self._boxes[to]
        while box.queue and len(box.queue) >= box.capacity and not self._in_turn:
            self._turn(box)
        self._take(box, message)

    def answer(self, to: str, message: Message) -> None:
        """Take the answer to an effect; always accepted while running."""
        self._take(self._boxes[to], message)

    def now(self) -> float:
        """Return the time that actors are told, monotonic seconds."""
        return self._clock()

    def deliver_to(self, to: str) -> Callable[[str, bytes], None]:
        """Return a bus subscriber that posts what it gets to actor `to`."""

        def deliver(subject: str, data: bytes) -> None:
            self.post(to, BusMessage(subject, data))

        return deliver

    def hand_to(self, to: str) -> Callable[[str, bytes], None]:
        """Return a bus subscriber in whose call actor `to` takes what it gets, unless something
        waits before it: a turn of the event loop less for each message.

        For what takes an actor no longer than it took to receive: a socket buffer of it is handled
        without a pause.
        """

        def hand(subject: str, data: bytes) -> None:
            box = self._boxes[to]
            if box.queue or self._in_turn or self._loop is None or self._is_stopped():
                self.post(to, BusMessage(subject, data))
            else:
                self._receive(box, BusMessage(subject, data))

        return hand

    def statistics(self) -> DriverStatistics:
        """Return the present counts."""
        return DriverStatistics(
            {
                name: MailboxStatistics(len(box.queue), box.handled, box.refused)
                for name, box in self._boxes.items()
            },
            self._faults,
            len(self._timers),
        )

    def _is_stopped(self) -> bool:
        return self._stopped is not None and self._stopped.done()

    def _put(self, box: _Mailbox, message: Message) -> None:
        if not self._is_stopped():
            box.queue.append(message)
            self._wake(box)

    def _take(self, box: _Mailbox, message: Message) -> None:
        """Let a message have its turn at once if nothing waits, else queue it."""
        if box.queue or self._ready or self._in_turn or self._loop is None or self._is_stopped():
            self._put(box, message)
            return
        now = self._clock()
        if now >= self._at_once_until_s:
            if now < self._at_once_until_s + self._slice_s:
                # The slice is over: sockets first.
                self._put(box, message)
                return
            self._at_once_until_s = now + self._slice_s
        box.queue.append(message)
        self._turn(box)

    def _wake(self, box: _Mailbox) -> None:
        if not box.ready:
            box.ready = True
            self._ready.append(box)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._turns)

    def _turns(self) -> None:
        """Run turns, round robin over actors, for one slice."""
        self._scheduled = False
        end = self._clock() + self._slice_s
        ready = self._ready
        while ready:
            box = ready.popleft()
            box.ready = False
            if box.queue:
                self._turn(box)
            if box.queue:
                box.ready = True
                ready.append(box)
            if self._clock() >= end:
                break
        if ready:
            self._schedule()

    def _turn(self, box: _Mailbox) -> None:
        self._receive(box, box.queue.popleft())

    def _receive(self, box: _Mailbox, message: Message) -> None:
        box.handled += 1
        self._in_turn = True
        try:
            for effect in box.actor.receive(message, self._clock()):
                self._carriers[type(effect)](box.actor.name, effect)
        except Exception as error:  # noqa: BLE001 - the one place that makes an actor's bug fatal
            self._fail(box.actor.name, message, error)
        finally:
            self._in_turn = False

    def _fail(self, actor: str, message: Message, error: Exception) -> None:
        self._faults += 1
        fields = {"actor": actor, "message": type(message).__name__, "error": repr(error)}
        self._log(Log("error", "actor failed", fields))
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_exception(error)
        self.stop()

    def _carry_send(self, _: str, effect: Effect) -> None:
        assert isinstance(effect, Send)
        self._put(self._boxes[effect.to], effect.message)

    def _carry_wake(self, actor: str, effect: Effect) -> None:
        assert isinstance(effect, Wake)
        if effect.after_s <= 0.0 or self._loop is None or self._is_stopped():
            self._put(self._boxes[actor], effect.message)
            return
        number = self._next_timer = self._next_timer + 1
        self._timers[number] = self._loop.call_later(
            near(effect.after_s), self._ring, number, actor, effect.message
        )

    def _ring(self, number: int, actor: str, message: Message) -> None:
        del self._timers[number]
        self._put(self._boxes[actor], message)

    def _carry_log(self, _: str, effect: Effect) -> None:
        assert isinstance(effect, Log)
        self._log(effect)

    def _carry_append(self, journal: Journal, actor: str, effect: Effect) -> None:
        assert isinstance(effect, Append)
        journal.append(effect.subject, effect.data, partial(self._appended, actor, effect.token))

    def _appended(self, actor: str, token: int, sequence: int) -> None:
        self.answer(actor, Appended(token, sequence))


def _carry_publish(bus: Bus, _: str, effect: Effect) -> None:
    assert isinstance(effect, Publish)
    bus.publish(effect.subject, effect.data)
