import asyncio
from typing import Any

import pytest

from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.pull import PullConsumer, PullSpec, parse_status
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions

IDLE = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"


class Listener:
    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []
        self.idle: list[int] = []
        self.stored_ns = 0
        self.broken: list[str] = []

    def on_message(self, sequence: int, subject: str, data: bytes, stored_ns: int) -> None:
        assert subject == "ev.w1"
        self.stored_ns = stored_ns
        self.messages.append((sequence, data))

    def on_idle(self, sequence: int) -> None:
        self.idle.append(sequence)

    def on_broken(self, reason: str) -> None:
        self.broken.append(reason)


class Wire:
    """A consumer fed by hand; what it would send is written down."""

    def __init__(self, window: int) -> None:
        self.listener = Listener()
        jetstream = JetStream(NatsConnection(NatsOptions()))
        spec = PullSpec(stream="S", window=window)
        self.consumer = PullConsumer(jetstream, spec, self.listener)
        self.pulls: list[bytes] = []
        # No server here.
        self.consumer._client.publish_nowait = self.publish  # type: ignore[method-assign]
        self.consumer._live = True
        self.consumer._received_s = asyncio.get_running_loop().time()
        self.consumer._pull()

    def publish(
        self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        del headers
        assert reply == self.consumer._inbox or "DELETE" in subject
        self.pulls.append(data)

    def message(self, sequence: int, delivery: int, domain: bytes = b"") -> None:
        reply = b"$JS.ACK.%sS.c.1.%d.%d.1700000000.0" % (domain, sequence, delivery)
        if domain:
            reply += b".random"
        self.consumer._on_wire("ev.w1", reply, b"%d" % sequence, None)

    def status(self, block: bytes) -> None:
        self.consumer._on_wire(self.consumer._inbox, b"", b"", block)


@pytest.fixture
async def wire() -> Wire:
    return Wire(window=4)


async def test_two_pulls_of_half_the_window_are_under_way(wire: Wire) -> None:
    assert len(wire.pulls) == 2
    assert all(b'"batch":2' in pull for pull in wire.pulls)

    for number in range(1, 5):
        wire.message(number, number)

    assert len(wire.pulls) == 4


async def test_a_hole_in_the_deliveries_breaks_it_once(wire: Wire) -> None:
    wire.message(1, 1)
    wire.message(3, 3)
    wire.message(4, 4)

    assert wire.listener.messages == [(1, b"1")]
    assert wire.listener.broken == ["delivery 2 lost, got 3"]


async def test_a_heartbeat_that_knows_of_more_deliveries_breaks_it(wire: Wire) -> None:
    wire.message(1, 1)
    wire.status(IDLE % (3, 3))

    assert wire.listener.broken == ["deliveries 2..3 lost"]


async def test_more_is_pulled_when_half_the_window_has_come(wire: Wire) -> None:
    wire.message(1, 1)
    assert len(wire.pulls) == 2

    wire.message(2, 2)

    assert len(wire.pulls) == 3


async def test_a_consumer_that_cannot_be_made_leaves_no_subscription(wire: Wire) -> None:
    received: list[int] = []

    async def listen(_subject: str, _deliver: object) -> int:
        received.append(7)
        return 7

    async def unlisten(number: int) -> None:
        received.remove(number)

    wire.consumer._client.listen = listen  # type: ignore[assignment]
    wire.consumer._client.unlisten = unlisten  # type: ignore[method-assign]

    with pytest.raises(TransportError):  # there is no server
        await wire.consumer.open()

    assert received == []


async def test_a_heartbeat_tells_where_the_consumer_stands(wire: Wire) -> None:
    wire.message(1, 1)
    wire.status(IDLE % (1, 20))
    wire.status(IDLE % (0, 0))

    assert wire.listener.idle == [20]
    assert not wire.listener.broken


@pytest.mark.parametrize(
    "line", ["409 Consumer Deleted", "409 Leadership Change", "409 Server Shutdown", "503"]
)
async def test_a_final_status_breaks_it(wire: Wire, line: str) -> None:
    wire.status(f"NATS/1.0 {line}\r\n\r\n".encode())
    wire.message(1, 1)

    assert [reason.strip() for reason in wire.listener.broken] == [line]
    assert wire.listener.messages == []


@pytest.mark.parametrize(
    "line", ["408 Request Timeout", "409 Message Size Exceeds MaxBytes", "409 Batch Completed"]
)
async def test_a_pull_that_ended_is_replaced(wire: Wire, line: str) -> None:
    wire.message(1, 1)
    wire.status(f"NATS/1.0 {line}\r\nNats-Pending-Messages: 1\r\n\r\n".encode())

    assert len(wire.pulls) == 3
    assert not wire.listener.broken


async def test_a_message_larger_than_any_pull_is_told_not_asked_for_again(wire: Wire) -> None:
    wire.status(b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 2\r\n\r\n")

    assert len(wire.pulls) == 2
    assert "larger than" in wire.listener.broken[0]


async def test_silence_breaks_it(monkeypatch: pytest.MonkeyPatch, eventually: Any) -> None:
    monkeypatch.setattr("kvmesh.transport.nats.jetstream.pull.HEARTBEAT_S", 0.02)
    monkeypatch.setattr("kvmesh.transport.nats.jetstream.pull.MISSED_HEARTBEATS_S", 0.05)
    wire = Wire(window=4)

    wire.consumer._watch()
    await eventually(lambda: wire.listener.broken)

    assert wire.listener.broken[0].startswith("no heartbeat for 0.")


async def test_a_process_that_slept_gives_the_server_another_chance(
    monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("kvmesh.transport.nats.jetstream.pull.HEARTBEAT_S", 0.02)
    monkeypatch.setattr("kvmesh.transport.nats.jetstream.pull.LATE_TIMER_S", -1.0)
    wire = Wire(window=4)
    wire.consumer._received_s -= 100
    checks: list[None] = []
    watch = wire.consumer._watch

    def count() -> None:
        checks.append(None)
        watch()

    wire.consumer._watch = count  # type: ignore[method-assign]  # to see it called again
    count()
    await eventually(lambda: len(checks) > 2)
    await wire.consumer.close()

    assert not wire.listener.broken


async def test_a_pull_that_cannot_be_sent_breaks_it() -> None:
    listener = Listener()
    jetstream = JetStream(NatsConnection(NatsOptions()))
    consumer = PullConsumer(jetstream, PullSpec(stream="S"), listener)
    consumer._live = True

    consumer._pull()

    assert listener.broken == ["cannot pull: nats: outbound buffer limit exceeded"]


async def test_noise_on_the_inbox_is_ignored(wire: Wire) -> None:
    wire.consumer._on_wire(wire.consumer._inbox, b"", b"hello", None)

    assert not wire.listener.broken
    assert not wire.listener.messages


def test_a_status_block_is_taken_apart() -> None:
    block = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\nX:y\r\n\r\n"

    assert parse_status(block) == (
        "408",
        "Request Timeout",
        {"nats-pending-messages": "1", "x": "y"},
    )
    assert parse_status(b"NATS/1.0 503\r\n\r\n") == ("503", "", {})
    assert parse_status(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n") == (
        "",
        "",
        {"kv-operation": "DEL"},
    )
