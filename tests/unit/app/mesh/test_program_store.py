"""Agents told and heard over the plane in memory, which can go away."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from kvmesh.app.mesh import program_store
from kvmesh.app.mesh.program_store import ProgramStore
from kvmesh.core.programs.sharing import ABSENT_S, ProgramSharing
from kvmesh.errors import TransportError
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer
from tests.unit.core.programs.test_sharing import Replica, key_of


class Shared:
    """A replica with its store on a plane of its own."""

    def __init__(self, server: MemoryServer, name: str, plane: MemoryPlane | None = None) -> None:
        self.replica = Replica(name)
        self.plane = plane or MemoryPlane(server)
        self.alive: Mapping[str, int] = {"r0": 1, "r1": 1}
        sharing: ProgramSharing = self.replica.sharing
        self.store = ProgramStore(sharing, self.plane, "chat", lambda: self.alive)

    async def start(self, stack: contextlib.AsyncExitStack) -> "Shared":
        await self.plane.connect()
        stack.push_async_callback(self.plane.close)
        stack.push_async_callback(self.store.stop)
        await self.store.start()
        return self

    def knows(self, name: str) -> bool:
        return self.replica.governor.table.find(key_of(name)) is not None


async def test_replicas_share_agents_and_a_new_one_knows_them_from_the_start(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)

    one.replica.begin("a")
    await eventually(lambda: two.knows("a"))
    late = await Shared(server, "r2").start(stack)

    assert late.knows("a")
    assert late.replica.governor.statistics().reserved_tokens == 60_000


async def test_news_wait_while_the_plane_is_away(
    stack: contextlib.AsyncExitStack, eventually: Eventually
) -> None:
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)
    one.replica.begin("told before", tokens=100)
    await eventually(lambda: two.knows("told before"))
    server.up = False
    server.wake()
    two.replica.governor.table.remove(key_of("told before"))
    one.replica.begin("a")

    server.up = True
    server.wake()

    await eventually(lambda: two.knows("a") and two.knows("told before"))


class Forbidden(MemoryPlane):
    """An account of an older version: it may not have the table, until it may."""

    allowed = False
    asked = 0

    async def programs(self, bucket: str, ttl_s: int, max_keys: int) -> Any:
        self.asked += 1
        if not self.allowed:
            raise TransportError("no right")
        return await super().programs(bucket, ttl_s, max_keys)


async def test_without_the_right_to_the_table_a_replica_goes_on_alone_and_asks_again(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_store, "RETRY_S", 0.01)
    server = MemoryServer()
    plane = Forbidden(server)
    one = await Shared(server, "r0", plane).start(stack)
    two = await Shared(server, "r1").start(stack)

    one.replica.begin("a")
    await eventually(lambda: plane.asked > 2)
    assert not two.knows("a")
    plane.allowed = True

    await eventually(lambda: two.knows("a"))


class Silent(MemoryPlane):
    """Gives a table of which nothing comes."""

    async def programs(self, bucket: str, ttl_s: int, max_keys: int) -> Any:
        del bucket, ttl_s, max_keys
        return _NothingComes()


class _NothingComes:
    async def follow(self, listener: object) -> Any:
        del listener
        return contextlib.AsyncExitStack()


async def test_a_start_waits_for_what_was_known_before_for_a_bounded_time(
    stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_store, "READ_S", 0.01)
    server = MemoryServer()

    await Shared(server, "r0", Silent(server)).start(stack)


async def test_garbage_in_the_table_is_passed_over(
    stack: contextlib.AsyncExitStack,
) -> None:
    server = MemoryServer()
    plane = MemoryPlane(server)
    await plane.connect()
    table = await plane.programs("chat", 3600, 100)
    table.put("x", b"no record")
    table.put("y", b"\x93\x09\xc0\xc0")
    with structlog.testing.capture_logs() as logs:
        one = await Shared(server, "r0").start(stack)

    one.replica.begin("a")

    assert one.replica.sharing.statistics().refused == 2
    assert [log["event"] for log in logs].count("agent refused") == 1
    assert not one.knows("x")


async def test_turns_of_a_dead_replica_end_and_its_reservations_stay(
    stack: contextlib.AsyncExitStack, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_store, "SETTLE_EVERY_S", 0.0)
    monkeypatch.setattr("kvmesh.core.programs.sharing.ABSENT_S", ABSENT_S / 1000)
    server = MemoryServer()
    one = await Shared(server, "r0").start(stack)
    two = await Shared(server, "r1").start(stack)
    one.replica.begin("a")
    await eventually(lambda: two.knows("a"))

    two.alive = {"r1": 1}

    await eventually(lambda: two.replica.agent("a").phase == "paused")
    assert two.replica.governor.statistics().reserved_tokens == 60_000
