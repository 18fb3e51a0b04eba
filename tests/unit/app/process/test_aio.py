import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import pytest
import uvloop

from kvmesh.actors.kernel import Append, Effect, Log, Message, Publish, Send, Wake
from kvmesh.actors.messages import Appended, BusMessage, Started, Tick
from kvmesh.app.process.aio import AioDriver
from tests.doubles.memory.bus import MemoryBus
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.server import MemoryServer


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object], *, what: str = "") -> Awaitable[None]: ...


class Recorder:
    """Remembers what it is told, and answers as it was told to."""

    def __init__(
        self, name: str = "a", answers: Callable[[Message], Sequence[Effect]] = lambda _: ()
    ) -> None:
        self.name = name
        self.heard: list[Message] = []
        self._answers = answers

    def receive(self, message: Message, now: float) -> Iterable[Effect]:  # noqa: ARG002
        self.heard.append(message)
        return self._answers(message)


def numbered(count: int) -> list[Message]:
    return [Tick("n", number) for number in range(count)]


async def test_every_actor_is_started_first_and_hears_in_order(eventually: Eventually) -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor)
    for message in numbered(3):
        assert driver.post("a", message)
    driver.start()
    driver.post("a", Tick("last"))

    await eventually(lambda: len(actor.heard) == 5)

    assert actor.heard == [Started(), *numbered(3), Tick("last")]
    driver.stop()


async def test_actors_tell_each_other_in_order(eventually: Eventually) -> None:
    one = Recorder("one", lambda message: [Send("two", message), Send("two", Tick("and"))])
    two, driver = Recorder("two"), AioDriver()
    driver.add(one)
    driver.add(two)
    driver.start()
    driver.post("one", Tick("x"))

    await eventually(lambda: len(two.heard) == 5)

    assert two.heard == [Started(), Started(), Tick("and"), Tick("x"), Tick("and")]
    driver.stop()


async def test_wakes_come_when_due_and_in_the_order_of_their_times(eventually: Eventually) -> None:
    def answers(message: Message) -> Sequence[Effect]:
        if isinstance(message, Started):
            return [Wake(0.02, Tick("late")), Wake(0.001, Tick("soon")), Wake(0.0, Tick("now"))]
        return ()

    actor, driver = Recorder(answers=answers), AioDriver()
    driver.add(actor)
    driver.start()

    await eventually(lambda: len(actor.heard) == 4)

    assert actor.heard[1:] == [Tick("now"), Tick("soon"), Tick("late")]
    assert driver.statistics().timers == 0
    driver.stop()


async def test_a_full_mailbox_refuses_what_comes_from_outside() -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor, capacity=2)

    accepted = [driver.post("a", message) for message in numbered(4)]

    assert accepted == [True, True, False, False]
    assert driver.statistics().mailboxes["a"].refused == 2


async def test_a_full_mailbox_makes_the_journal_wait_by_working_it_off() -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor, capacity=3)
    for message in numbered(10):
        driver.press("a", message)

    assert actor.heard == numbered(7)
    assert driver.statistics().mailboxes["a"].waiting == 3


async def test_pressing_within_a_turn_does_not_run_turns_in_turns() -> None:
    driver = AioDriver(log=lambda _: driver.press("a", Tick("inner")))
    actor = Recorder(answers=lambda message: [Log("info", "x")] if message == Tick("n", 0) else [])
    driver.add(actor, capacity=1)

    for message in numbered(3):
        driver.press("a", message)

    assert actor.heard == [Tick("n", 0), Tick("inner"), Tick("n", 1)]


async def test_what_is_handed_over_is_taken_at_once_and_in_order() -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor)
    hand = driver.hand_to("a")

    hand("s", b"before the start")
    driver.start()
    hand("s", b"before the first turn")
    assert actor.heard == []
    await asyncio.sleep(0)
    hand("s", b"at once")

    data = [b"before the start", b"before the first turn", b"at once"]
    assert actor.heard == [Started(), *(BusMessage("s", one) for one in data)]
    assert driver.statistics().mailboxes["a"].handled == 4
    driver.stop()
    hand("s", b"too late")
    assert len(actor.heard) == 4


async def test_what_is_handed_over_within_a_turn_waits_for_its_own(eventually: Eventually) -> None:
    hands: list[Callable[[str, bytes], None]] = []
    driver = AioDriver(log=lambda _: hands[0]("s", b"inner"))
    actor = Recorder(answers=lambda message: [Log("info", "x")] if message == Tick("n", 0) else [])
    driver.add(actor)
    hands.append(driver.hand_to("a"))
    driver.start()

    driver.post("a", Tick("n", 0))
    driver.post("a", Tick("n", 1))

    await eventually(lambda: len(actor.heard) == 4)
    assert actor.heard[2:] == [Tick("n", 1), BusMessage("s", b"inner")]
    driver.stop()


async def test_a_fault_in_what_was_handed_over_stops_the_driver() -> None:
    def answers(message: Message) -> Sequence[Effect]:
        if message == BusMessage("s", b"x"):
            raise RuntimeError("a bug")
        return ()

    actor, driver = Recorder(answers=answers), AioDriver()
    driver.add(actor)
    driver.start()
    await asyncio.sleep(0)

    driver.hand_to("a")("s", b"x")

    with pytest.raises(RuntimeError, match="a bug"):
        await driver.run()
    assert driver.statistics().faults == 1


async def test_appends_are_answered_and_publishing_is_forgotten(eventually: Eventually) -> None:
    server = MemoryServer()
    journal, bus = MemoryJournal(server, "s"), MemoryBus(server)
    await journal.open()
    received: list[tuple[str, bytes]] = []
    await bus.subscribe("x.*", lambda subject, data: received.append((subject, data)))
    actor = Recorder(
        answers=lambda message: (
            [Append("ev.w", b"data", 7), Publish("x.y", b"hello")]
            if isinstance(message, Started)
            else []
        )
    )
    driver = AioDriver(journal=journal, bus=bus)
    driver.add(actor)
    driver.start()

    await eventually(lambda: Appended(7, 1) in actor.heard and received)

    assert received == [("x.y", b"hello")]
    driver.stop()


async def test_bus_messages_reach_the_actor_that_subscribed(eventually: Eventually) -> None:
    server = MemoryServer()
    bus, actor, driver = MemoryBus(server), Recorder(), AioDriver()
    driver.add(actor)
    driver.start()
    await bus.subscribe("x.*", driver.deliver_to("a"))

    bus.publish("x.y", b"hello")

    await eventually(lambda: BusMessage("x.y", b"hello") in actor.heard)
    driver.stop()


async def test_effects_of_the_owners_own_are_carried_out() -> None:
    class Ring(Effect, frozen=True):
        bell: int

    rung: list[tuple[str, Effect]] = []
    driver = AioDriver()
    driver.carry(Ring, lambda actor, effect: rung.append((actor, effect)))
    actor = Recorder(answers=lambda _: [Ring(3)])
    driver.add(actor, capacity=0)

    driver.press("a", Tick())
    driver.start()
    await asyncio.sleep(0)

    assert rung[0] == ("a", Ring(3))
    driver.stop()


async def test_an_actors_exception_is_logged_counted_and_ends_the_run() -> None:
    def answers(message: Message) -> Sequence[Effect]:
        if message == Tick("bug"):
            raise ValueError("boom")
        return [Wake(60.0, Tick("never"))]

    logs: list[Log] = []
    driver = AioDriver(log=logs.append)
    driver.add(Recorder(answers=answers))
    driver.post("a", Tick("bug"))

    with pytest.raises(ValueError, match="boom"):
        await driver.run()

    assert [(one.event, one.fields["message"]) for one in logs] == [("actor failed", "Tick")]
    assert (driver.statistics().faults, driver.statistics().timers) == (1, 0)
    assert not driver.post("a", Tick())


async def test_an_effect_that_nothing_carries_is_a_bug() -> None:
    driver = AioDriver()
    driver.add(Recorder(answers=lambda _: [Publish("x", b"")]))

    with pytest.raises(KeyError):
        await driver.run()


async def test_a_stopped_driver_delivers_nothing_more() -> None:
    actor, driver = Recorder(answers=lambda _: [Wake(0.001, Tick("late"))]), AioDriver()
    driver.add(actor)
    running = asyncio.create_task(driver.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    driver.stop()
    driver.stop()
    await running

    heard = len(actor.heard)
    driver.answer("a", Tick())
    assert not driver.post("a", Tick())
    await asyncio.sleep(0.005)
    assert len(actor.heard) == heard


async def test_sockets_are_served_between_slices_of_turns(eventually: Eventually) -> None:
    clock = iter(range(1_000_000))
    actor = Recorder(answers=lambda message: [Wake(0.0, message)])
    driver = AioDriver(slice_s=1.0, clock=lambda: float(next(clock)))
    driver.add(actor)
    driver.start()

    await eventually(lambda: len(actor.heard) > 100, what="turns go on while others run")

    driver.stop()


async def test_a_bug_before_the_start_is_counted_too() -> None:
    driver = AioDriver()
    driver.add(Recorder(answers=lambda _: [Publish("x", b"")]), capacity=1)

    driver.press("a", Tick())
    driver.press("a", Tick())

    assert driver.statistics().faults == 1


def test_it_runs_under_uvloop() -> None:
    async def run() -> list[Message]:
        actor = Recorder(
            answers=lambda message: (
                [Wake(0.001, Tick("end"))] if isinstance(message, Started) else [Log("info", "end")]
            )
        )
        driver = AioDriver(log=lambda _: driver.stop())
        driver.add(actor)
        await driver.run()
        return actor.heard

    assert sys.version_info >= (3, 11)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == [Started(), Tick("end")]


async def test_what_a_producer_brings_has_its_turn_at_once_while_nothing_waits(
    eventually: Eventually,
) -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor)
    driver.start()
    await eventually(lambda: actor.heard)

    driver.press("a", Tick("x"))
    driver.answer("a", Appended(1, 2))

    assert actor.heard == [Started(), Tick("x"), Appended(1, 2)]
    driver.stop()
    driver.press("a", Tick("late"))
    assert len(actor.heard) == 3


async def test_what_waits_is_not_overtaken(eventually: Eventually) -> None:
    actor, driver = Recorder(), AioDriver()
    driver.add(actor)
    driver.start()
    driver.press("a", Tick("before the start"))
    await eventually(lambda: len(actor.heard) == 2)

    driver.post("a", Tick("posted"))
    driver.press("a", Tick("pressed"))

    assert len(actor.heard) == 2
    await eventually(lambda: len(actor.heard) == 4)
    assert actor.heard[2:] == [Tick("posted"), Tick("pressed")]
    driver.stop()


async def test_turns_at_once_end_with_a_slice(eventually: Eventually) -> None:
    now = [0.0]
    actor = Recorder()
    driver = AioDriver(clock=lambda: now[0], slice_s=1.0)
    driver.add(actor)
    driver.start()
    await eventually(lambda: actor.heard)
    now[0] = 10.0
    driver.press("a", Tick("first"))
    now[0] = 11.5

    driver.press("a", Tick("second"))

    assert actor.heard == [Started(), Tick("first")]
    await eventually(lambda: len(actor.heard) == 3)
    now[0] = 12.0
    driver.press("a", Tick("third"))
    assert actor.heard[3:] == [Tick("third")]
    driver.stop()


async def test_a_turn_at_once_that_fails_stops_the_driver(eventually: Eventually) -> None:
    def answers(message: Message) -> Sequence[Effect]:
        return (1 / 0,) if message == Tick("x") else ()  # type: ignore[return-value]  # never

    actor, driver = Recorder(answers=answers), AioDriver()
    driver.add(actor)
    driver.start()
    await eventually(lambda: actor.heard)

    driver.press("a", Tick("x"))

    assert driver.statistics().faults == 1
    with pytest.raises(ZeroDivisionError):
        await driver.run()
