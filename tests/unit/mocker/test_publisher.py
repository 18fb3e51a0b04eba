"""Publisher and subscription over loopback sockets."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
import uvloop
import zmq

from kvmesh.core.engines.kv_events.event_source import END_OF_REPLAY, SourceOptions
from kvmesh.errors import TransportError
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions
from kvmesh_lab.mocker.publisher import EventPublisher, ZmqPublisherOptions

pytestmark = pytest.mark.integration

FREE = "tcp://127.0.0.1:*"
QUICK = SourceOptions(reply_timeout_s=1.0, silence_timeout_s=0.1, probe_interval_s=0.3)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what is waited for happens in sockets
            await asyncio.sleep(0.005)


class Recorder:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self.batches: list[tuple[int, bytes]] = []
        self.caught_up: int | None = None
        self.connected: list[bool] = []

    def on_batch(self, seq: int, payload: bytes) -> None:
        self.received.append(seq)
        self.batches.append((seq, payload))

    def on_restarted(self) -> None:
        self.received.append("restarted")
        self.caught_up = None

    def on_lost(self, first: int, last: int) -> None:
        self.received.append(("lost", first, last))

    def on_resumed(self, seq: int) -> None:
        self.received.append(("resumed", seq))
        self.caught_up = None

    def on_caught_up(self, last_seq: int) -> None:
        self.caught_up = last_seq

    def on_connection(self, *, connected: bool) -> None:
        self.connected.append(connected)

    async def wait(self, condition: Callable[["Recorder"], object]) -> None:
        await until(lambda: condition(self))


@asynccontextmanager
async def publishing(**changes: Any) -> AsyncIterator[EventPublisher]:
    publisher = EventPublisher(
        ZmqPublisherOptions(**{"endpoint": FREE, "replay_endpoint": FREE, **changes})
    )
    try:
        yield publisher
    finally:
        publisher.close()
        publisher.close()


@asynccontextmanager
async def following(
    publisher: EventPublisher | None = None, **changes: Any
) -> AsyncIterator[tuple[EventSubscription, Recorder]]:
    recorder = Recorder()
    if publisher is not None:
        changes = {
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            **changes,
        }
    subscription = EventSubscription(SubscriptionOptions(**{"source": QUICK, **changes}), recorder)
    subscription.start()
    try:
        yield subscription, recorder
    finally:
        subscription.close()
        subscription.close()


async def test_a_late_subscriber_gets_what_was_published_before_and_after() -> None:
    async with publishing() as publisher:
        for number in range(500):
            publisher.publish(b"payload %d" % number)

        async with following(publisher) as (subscription, recorder):
            await recorder.wait(lambda r: r.caught_up == 499)
            publisher.publish(b"live")
            await recorder.wait(lambda r: len(r.batches) == 501)

            assert recorder.received == list(range(501))
            assert recorder.batches[7] == (7, b"payload 7")
            assert recorder.batches[500] == (500, b"live")
            assert subscription.statistics().connected


def test_a_deadline_that_uvloop_makes_a_turn_of_its_loop_stops_nobody() -> None:
    """uvloop's handles for delays below 0.5 ms have no `when()`."""
    impatient = SourceOptions(reply_timeout_s=1.0, silence_timeout_s=0.0, probe_interval_s=0.0)
    reported: list[dict[str, object]] = []

    async def follow() -> list[object]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        async with publishing() as publisher:
            for number in range(300):
                publisher.publish(b"payload %d" % number)
            async with following(publisher, source=impatient) as (_, recorder):
                await recorder.wait(lambda r: len(r.batches) == 300)
                return recorder.received

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        received = runner.run(follow())

    assert received == list(range(300))
    assert not reported


async def test_a_restarted_engine_is_noticed_and_followed_from_its_start() -> None:
    async with publishing() as first:
        endpoints = {"endpoint": first.endpoint, "replay_endpoint": first.replay_endpoint}
        async with following(first) as (_, recorder):
            for number in range(5):
                first.publish(b"old %d" % number)
            await recorder.wait(lambda r: len(r.batches) == 5)
            first.close()
            await recorder.wait(lambda r: r.connected and not r.connected[-1])

            async with publishing(**endpoints) as second:
                for number in range(3):
                    second.publish(b"new %d" % number)
                await recorder.wait(lambda r: r.caught_up == 2)

            assert recorder.received == [0, 1, 2, 3, 4, "restarted", 0, 1, 2]
            assert recorder.connected[:3] == [True, False, True]


async def test_a_restarted_engine_that_says_nothing_is_noticed_too() -> None:
    async with publishing() as first:
        endpoints = {"endpoint": first.endpoint, "replay_endpoint": first.replay_endpoint}
        async with following(first) as (_, recorder):
            first.publish(b"old")
            await recorder.wait(lambda r: r.batches)
            first.close()

            async with publishing(**endpoints):
                await recorder.wait(lambda r: r.caught_up == -1 and "restarted" in r.received)

            assert recorder.received == [0, "restarted"]


async def test_the_engine_may_start_later_than_its_follower() -> None:
    async with publishing() as probe:
        endpoints: dict[str, Any] = {
            "endpoint": probe.endpoint,
            "replay_endpoint": probe.replay_endpoint,
        }
    async with following(**endpoints) as (_, recorder), publishing(**endpoints) as publisher:
        publisher.publish(b"x")
        await recorder.wait(lambda r: r.caught_up == 0)


async def test_replies_without_topic_of_older_engines_are_understood() -> None:
    context = zmq.Context()
    with Fake(context, frames=3) as fake:
        async with following(endpoint=fake.live, replay_endpoint=fake.replay) as (_, recorder):
            await fake.answer([(0, b"a"), (1, b"b")])
            await recorder.wait(lambda r: r.caught_up == 1)
    context.term()


async def test_malformed_messages_are_counted_and_skipped() -> None:
    context = zmq.Context()
    with Fake(context) as fake:
        async with following(endpoint=fake.live, replay_endpoint=fake.replay) as (sub, recorder):
            await fake.answer([])
            await recorder.wait(lambda r: r.caught_up == -1)
            fake.pub.send_multipart([b"only two", b"frames"])
            fake.pub.send_multipart([b"", b"short", b"payload"])
            fake.pub.send_multipart([b"", struct.pack(">Q", 0), b"good"])
            await recorder.wait(lambda r: r.batches)
            assert sub.statistics().malformed == 2
            identity = await fake.ask()
            fake.router.send_multipart([identity, b"x"])
            await recorder.wait(lambda _: sub.statistics().malformed == 3)
    context.term()


async def test_an_engine_that_connects_out_finds_a_bound_subscription() -> None:
    async with (
        following(endpoint=FREE, bind=True) as (subscription, recorder),
        publishing(endpoint=subscription.endpoint, replay_endpoint=None, connect=True) as publisher,
    ):
        await recorder.wait(lambda r: r.connected)
        async with asyncio.timeout(60):
            while not recorder.batches:
                publisher.publish(b"x")
                await asyncio.sleep(0.01)

        assert publisher.replay_endpoint is None


async def test_only_the_topic_asked_for_is_followed() -> None:
    async with (
        publishing(topic="kv@a", replay_endpoint=None) as publisher,
        following(publisher, topic="kv@b") as (_, other),
        following(publisher, topic="kv@") as (_, recorder),
    ):
        async with asyncio.timeout(60):
            while not recorder.batches:
                publisher.publish(b"x")
                await asyncio.sleep(0.01)
        assert not other.batches


async def test_an_address_in_use_is_an_error_that_names_it() -> None:
    async with publishing() as publisher:
        with pytest.raises(TransportError, match=r"127\.0\.0\.1"):
            EventPublisher(ZmqPublisherOptions(endpoint=publisher.endpoint))
        with pytest.raises(TransportError, match=r"127\.0\.0\.1"):
            EventPublisher(
                ZmqPublisherOptions(endpoint=FREE, replay_endpoint=publisher.replay_endpoint)
            )
        taken = SubscriptionOptions(endpoint=publisher.endpoint, bind=True)
        with pytest.raises(TransportError, match="KV events at"):
            EventSubscription(taken, Recorder()).start()


async def test_malformed_replay_requests_are_ignored() -> None:
    async with publishing() as publisher:
        publisher.publish(b"x")
        context = zmq.Context()
        dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        dealer.connect(str(publisher.replay_endpoint))
        dealer.send_multipart([b"", b"short"])
        dealer.send_multipart([b"one frame"])
        dealer.send_multipart([b"", struct.pack(">Q", 0)])
        await until(lambda: dealer.poll(0))

        assert dealer.recv_multipart() == [b"", b"", struct.pack(">Q", 0), b"x"]
        assert publisher.replays_served == 1
        dealer.close(linger=0)
        context.term()


def test_uvloop_reads_the_same_sockets() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_late_subscriber_gets_what_was_published_before_and_after())
        runner.run(test_replies_dropped_by_the_publisher_are_asked_for_again())


class Fake:
    """A publisher played by hand."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", frames: int = 4) -> None:
        self.frames = frames
        self.pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self.router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.live = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)

    async def ask(self) -> bytes:
        await until(lambda: self.router.poll(0))
        identity, _, _ = self.router.recv_multipart()
        return identity

    async def answer(self, batches: list[tuple[int, bytes]]) -> bytes:
        identity = await self.ask()
        for seq, payload in [*batches, (END_OF_REPLAY, b"")]:
            head = [identity, b""] if self.frames == 3 else [identity, b"", b"topic"]
            self.router.send_multipart([*head, struct.pack(">Q", seq), payload])
        return identity


async def test_replies_dropped_by_the_publisher_are_asked_for_again() -> None:
    async with publishing(replay_hwm=20) as publisher:
        for _ in range(300):
            publisher.publish(bytes(2000))

        async with following(publisher) as (subscription, recorder):
            await recorder.wait(lambda r: r.caught_up == 299)

            assert recorder.received == list(range(300))
            assert subscription.statistics().replay_rounds > 1
