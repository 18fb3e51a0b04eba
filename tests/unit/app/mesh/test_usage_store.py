"""The record of usage over the plane in memory, which can go away."""

import contextlib
import time
from collections.abc import Callable

import msgspec
import pytest
import structlog

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh import usage_store
from kvmesh.app.mesh.usage_store import ACK_S, AWAY, MOST_IN_FLIGHT, UNREAD, UsageStore
from kvmesh.core.admission.usage import HOUR_S, Consumer, UsageBatch, UsageSums
from kvmesh.core.admission.usage_book import UsageBook, summed
from kvmesh.errors import TransportError
from kvmesh.ports import Journal, StreamState
from tests.conftest import Eventually
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer

NOW = float(int(time.time()))
BUCKET = "chat"


class Shared:
    """A replica's book with its store on a plane of its own."""

    def __init__(self, server: MemoryServer, name: str, plane: MemoryPlane | None = None) -> None:
        self.now_s = 100.0
        self.book = UsageBook(BUCKET, name, 1)
        self.plane = plane or MemoryPlane(server)
        subject = Subjects("kvmesh", BUCKET).usage(name)
        self.store = UsageStore(self.book, self.plane, BUCKET, subject, lambda: self.now_s)

    async def start(self, stack: contextlib.AsyncExitStack) -> "Shared":
        await self.plane.connect()
        stack.push_async_callback(self.plane.close)
        stack.push_async_callback(self.store.stop)
        self.store.start()
        return self

    def use(self, count: int = 1) -> None:
        for _ in range(count):
            self.book.count(Consumer("t"), UsageSums(1))
            self.book.flush(NOW)

    def known(self) -> int:
        windows = self.book.windows.since(NOW - 3 * HOUR_S, time.time())
        return summed(windows, "tenant", None, NOW).total.requests


async def test_replicas_know_what_each_served_and_a_new_one_what_was_before(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)

    one.use()
    two.use(2)
    await eventually(lambda: one.known() == two.known() == 3)
    late = await Shared(server, "r2").start(stack)

    assert late.book.missing == UNREAD
    await eventually(lambda: late.known() == 3 and not late.book.missing)
    await eventually(lambda: not one.book.unsent and not two.book.unsent)


async def test_batches_wait_while_the_plane_is_away_and_it_is_said_what_is_missing(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)
    await eventually(lambda: not one.book.missing and not two.book.missing)
    server.up = False
    server.wake()
    one.use()
    await eventually(lambda: one.book.missing == AWAY)
    assert one.book.statistics().unsent == 1

    server.up = True
    server.wake()

    await eventually(lambda: two.known() == 1 and not one.book.missing)


async def test_what_is_not_acknowledged_is_sent_again_and_stored_once(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)
    server.drop_acks = True
    one.use(MOST_IN_FLIGHT + 2)
    await eventually(lambda: two.known() == MOST_IN_FLIGHT)

    one.now_s += ACK_S + 1.0
    server.drop_acks = False

    await eventually(lambda: not one.book.unsent)
    await eventually(lambda: two.known() == MOST_IN_FLIGHT + 2)
    assert two.book.statistics().received == MOST_IN_FLIGHT + 2


async def test_an_end_stores_what_is_left_but_waits_for_so_long_only(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)
    await eventually(lambda: not one.book.missing and not two.book.missing)
    one.use(3)
    await one.store.stop()
    await eventually(lambda: two.known() == 3)
    assert not one.book.unsent

    server.drop_acks = True
    two.use()
    monkeypatch.setattr(usage_store, "STOP_S", 0.05)
    await two.store.stop()
    assert two.book.statistics().unsent == 1


class Refusing(MemoryPlane):
    """A plane that has no stream at first."""

    tries = 0

    async def usage(self, bucket: str) -> Journal:  # type: ignore[override]  # any journal
        self.tries += 1
        if self.tries < 3:
            raise TransportError("JetStream is off")
        return await super().usage(bucket)


async def test_without_a_stream_it_is_asked_for_again(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_store, "RETRY_S", 0.01)
    server = MemoryServer()
    plane = Refusing(server)
    with structlog.testing.capture_logs() as logs:
        one = await Shared(server, "r0", plane).start(stack)
        await eventually(lambda: one.book.missing == "what siblings served: JetStream is off")
        one.use()
        await eventually(lambda: not one.book.unsent and not one.book.missing)

    said = [line["error"] for line in logs if line["event"] == "usage is not recorded"]
    assert said == ["JetStream is off"]


class Failing(MemoryJournal):
    """A journal whose first append fails for an error of ours."""

    failed = False

    def append(
        self, subject: str, data: bytes, acked: Callable[[int], None], message_id: str = ""
    ) -> None:
        if not self.failed:
            self.failed = True
            raise RuntimeError("planted")
        super().append(subject, data, acked, message_id)


class FailingPlane(MemoryPlane):
    async def usage(self, bucket: str) -> MemoryJournal:
        await super().usage(bucket)
        return Failing(self._server, f"kvmesh_usage_{bucket}")


async def test_an_error_of_ours_ends_neither_reading_nor_storing(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_store, "ACK_S", 0.0)
    server = MemoryServer()
    one = Shared(server, "r0", FailingPlane(server))
    one.use()
    await one.start(stack)

    await eventually(lambda: not one.book.unsent and not one.book.missing)
    assert one.known() == 1


async def test_news_of_the_connection_before_the_record_is_read_change_nothing() -> None:
    one = Shared(MemoryServer(), "r0")
    one.book.missing = UNREAD

    one.store._on_change(True)

    assert one.book.missing == UNREAD


async def test_what_cannot_be_read_is_said_once_and_a_stream_made_anew_is_read_on(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    await eventually(lambda: not one.book.missing)
    journal = await one.plane.usage(BUCKET)
    with structlog.testing.capture_logs() as logs:
        for data in (b"no JSON", b"{}"):
            journal.append("kvmesh.use.chat.r1", data, lambda _: None)
        await eventually(lambda: one.book.statistics().refused == 2)
    assert [line["event"] for line in logs].count("usage refused") == 1
    one.use()
    await eventually(lambda: not one.book.unsent)

    server.delete_stream("kvmesh_usage_chat")
    server.wake()
    batch = msgspec.json.encode(UsageBatch("chat/r1-1-1", BUCKET, "r1", NOW, NOW, ()))

    async def told_again() -> bool:
        again = await one.plane.usage(BUCKET)
        again.append("kvmesh.use.chat.r1", batch, lambda _: None, "chat/r1-1-1")
        return one.book.statistics().received == 1

    assert not await told_again()
    await eventually(lambda: one.book.statistics().received == 1)
    assert one.known() == 1
    one.store.on_gap(1, 2)
    one.store.on_recreated(StreamState("", 0, 0))


def test_times_and_bounds_are_these() -> None:
    assert (ACK_S, MOST_IN_FLIGHT, usage_store.TELL_EVERY_S) == (5.0, 16, 0.25)
