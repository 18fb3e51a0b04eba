"""Commands between processes, over a real server."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from kvmesh.actors.messages import Drain, Resync, Status
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import TransportError
from kvmesh.transport.nats.link.broker import SharedBroker
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.control import ControlPlane
from tests.integration.nats.clients import connect

pytestmark = pytest.mark.integration

WORKER, EVERYONE = "kvmesh.ctl.code.w1", "kvmesh.ctl.code.all"
RESYNC = Resync(WorkerId("w1"), 7, 3, "r1")


class Worker:
    def __init__(self) -> None:
        self.reported: list[Any] = []
        self.started = asyncio.Event()
        self.release = asyncio.Event()

    async def resync(self, command: Resync) -> int:
        self.reported.append(command)
        return command.next_seq

    async def drain(self, command: Drain) -> None:
        self.started.set()
        await self.release.wait()
        self.reported.append(command)


async def start_worker(
    stack: contextlib.AsyncExitStack, url: str, worker: Worker
) -> tuple[ControlPlane, Any]:
    connection = await connect(stack, url=url)
    plane = ControlPlane(
        connection, [WORKER, EVERYONE], {Resync: worker.resync, Drain: worker.drain}
    )
    await plane.start()
    stack.push_async_callback(plane.close)
    return plane, connection


async def start_asker(stack: contextlib.AsyncExitStack, url: str) -> ControlPlane:
    plane = ControlPlane(await connect(stack, url=url), [], {})
    await plane.start()
    stack.push_async_callback(plane.close)
    return plane


async def test_a_command_is_answered_across_processes(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    worker = Worker()
    await start_worker(stack, nats_server.url, worker)
    router = await start_asker(stack, nats_server.url)

    assert await router.ask(WORKER, RESYNC, int) == 3
    assert await router.ask(EVERYONE, RESYNC, int) == 3
    with pytest.raises(TransportError, match="refused"):
        await router.ask(WORKER, Status(), int)

    assert worker.reported == [RESYNC, RESYNC]


async def test_a_command_on_the_bus_is_carried_out_unasked(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    worker = Worker()
    await start_worker(stack, nats_server.url, worker)
    bus = NatsBus(await connect(stack, url=nats_server.url))

    bus.publish(WORKER, b"garbage")
    bus.publish(WORKER, msgspec.msgpack.encode(RESYNC))
    await eventually(lambda: worker.reported == [RESYNC])


async def test_asking_nobody_is_told_at_once(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    router = await start_asker(stack, nats_server.url)

    with pytest.raises(TransportError, match="no responders"):
        await router.ask("kvmesh.ctl.code.w9", Status(), int, timeout_s=60)


async def test_a_late_answer_is_told_as_such(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    worker = Worker()
    await start_worker(stack, nats_server.url, worker)
    router = await start_asker(stack, nats_server.url)

    with pytest.raises(TransportError, match=r"no answer in 0\.1 s"):
        await router.ask(WORKER, Drain(), type(None), timeout_s=0.1)
    worker.release.set()


async def test_close_finishes_the_command_under_way_and_keeps_the_connection(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    worker = Worker()
    plane, connection = await start_worker(stack, nats_server.url, worker)
    router = await start_asker(stack, nats_server.url)
    asking = asyncio.create_task(router.ask(WORKER, Drain(), type(None), timeout_s=60))
    await worker.started.wait()

    closing = asyncio.create_task(plane.close())
    done, _ = await asyncio.wait({closing}, timeout=0.05)
    assert not done
    worker.release.set()
    await closing
    await plane.close()
    await asking

    assert worker.reported == [Drain()]
    assert connection.connected
    with pytest.raises(TransportError, match="no responders"):
        await router.ask(WORKER, RESYNC, int)


async def test_commands_go_on_after_the_server_was_killed(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    worker = Worker()
    _, connection = await start_worker(stack, own_server.url, worker)
    asking = await connect(stack, url=own_server.url)
    router = ControlPlane(asking, [], {})
    await router.start()
    stack.push_async_callback(router.close)

    own_server.kill()
    await eventually(lambda: not connection.connected and not asking.connected)
    await own_server.start()
    await eventually(lambda: connection.connected and asking.connected)

    assert await router.ask(WORKER, RESYNC, int) == 3


async def test_a_command_given_up_while_its_carrier_started_harms_no_later_one(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_worker(stack, nats_server.url, Worker())
    router = await start_asker(stack, nats_server.url)
    begun, start = asyncio.Event(), SharedBroker.start

    async def begin(broker: SharedBroker) -> None:
        if begun.is_set():
            await start(broker)
        else:
            begun.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(SharedBroker, "start", begin)
    given_up = asyncio.create_task(router.ask(WORKER, RESYNC, int))
    await begun.wait()
    given_up.cancel()
    await asyncio.wait({given_up})

    assert await router.ask(WORKER, RESYNC, int) == 3
