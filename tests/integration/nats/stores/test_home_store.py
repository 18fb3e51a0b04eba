"""Homes of conversations in a real KV bucket: shared, kept over restarts, done without."""

import asyncio
import contextlib
import time
from functools import partial

import pytest
from structlog.testing import capture_logs

from kvmesh.app.mesh import home_store
from kvmesh.app.mesh.home_store import HomeStore
from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.buckets.homes import HomeOptions, Homes
from kvmesh.errors import TransportError
from kvmesh.ports import EventPlane, SharedTable
from kvmesh.settings.roles import NatsSettings
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer

pytestmark = pytest.mark.integration


async def started(
    stack: contextlib.AsyncExitStack, plane: EventPlane, max_homes: int = 1000
) -> tuple[Homes, HomeStore]:
    homes = Homes(HomeOptions(max_homes=max_homes))
    await plane.connect(patient=True)
    stack.push_async_callback(plane.close)
    make = partial(plane.homes, int(homes.options.ttl_s), max_homes)
    store = HomeStore(homes, plane, make, "homes of conversations")
    stack.push_async_callback(store.stop)
    await store.start()
    return homes, store


async def test_homes_are_shared_told_at_the_end_and_bounded(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    one, store = await started(stack, event_plane(nats, "tool"))
    two, _ = await started(stack, event_plane(nats, "tool"))

    for key in range(1500):
        one.note(key, "chat", time.monotonic())
    await eventually(lambda: two.find(1499, time.monotonic()) == ("chat",))
    two.note(1499, "code", time.monotonic())
    await eventually(lambda: one.find(1499, time.monotonic()) == ("chat", "code"))
    one.note(7, "chat", time.monotonic())
    await store.stop()
    late, _ = await started(stack, event_plane(nats, "tool"))

    assert len(one) == len(two) == len(late) == 1000
    assert late.find(1499, time.monotonic()) == ("chat", "code")
    assert late.find(7, time.monotonic()) == ("chat",)


async def test_what_was_learned_while_the_plane_was_away_is_told_when_it_is_back(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one, _ = await started(stack, MemoryPlane(server))
    two, _ = await started(stack, MemoryPlane(server))

    server.set_up(up=False)
    one.note(1, "chat", time.monotonic())
    await eventually(lambda: not two.find(1, time.monotonic()))
    assert one.updates
    server.set_up(up=True)

    await eventually(lambda: two.find(1, time.monotonic()) == ("chat",))
    assert not one.updates


class NoTable(MemoryPlane):
    """A plane whose table cannot be had at first."""

    refusals = 2

    async def homes(self, ttl_s: int, max_keys: int) -> SharedTable:  # type: ignore[override]  # wider
        if self.refusals:
            self.refusals -= 1
            raise TransportError("JetStream is off")
        return await super().homes(ttl_s, max_keys)


async def test_without_a_table_a_start_goes_on_and_it_is_used_when_it_is_there(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_store, "READ_S", 0.02)
    monkeypatch.setattr(home_store, "RETRY_S", 0.2)
    server = MemoryServer()
    other, _ = await started(stack, MemoryPlane(server))

    homes, _ = await started(stack, NoTable(server))
    homes.note(1, "chat", time.monotonic())

    await eventually(lambda: other.find(1, time.monotonic()) == ("chat",))


async def test_a_table_that_is_slow_to_answer_is_not_waited_for_any_longer(
    stack: contextlib.AsyncExitStack,
) -> None:
    async def never() -> SharedTable:
        await asyncio.Event().wait()
        raise AssertionError

    store = HomeStore(Homes(HomeOptions()), MemoryPlane(MemoryServer(), "n"), never, "ids")
    stack.push_async_callback(store.stop)
    with capture_logs() as lines:
        await store.start(0.01)

    assert [(one["event"], one["table"]) for one in lines] == [("table is not read yet", "ids")]
