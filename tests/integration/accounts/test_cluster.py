"""Accounts in a cluster of three: what one server's clients say is heard at the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.nats_streams import StreamsOptions, make_streams
from kvmesh.errors import TransportError
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.link.connection import NatsConnection
from tests.integration.support.live_router import free_port
from tests.integration.support.locked_mesh import STREAM_BYTES, LockedMesh

pytestmark = pytest.mark.integration

SERVERS = 3
CLUSTER = """
server_name: n{number}
cluster {{ name: kvmesh, listen: "127.0.0.1:{port}", routes: [ {routes} ] }}
"""
TRIES_S = 0.2
EARLY = -1


class Cluster:
    """Three servers with the accounts of one mesh."""

    def __init__(self, folder: Path, mesh: LockedMesh) -> None:
        self.mesh = mesh
        self._folder = folder
        self._ports = [free_port() for _ in range(SERVERS)]
        self.servers: list[NatsServer] = []

    def config(self, number: int) -> str:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._ports)
        accounts = (self.mesh.options.out / "accounts.conf").read_text()
        return accounts + CLUSTER.format(number=number, port=self._ports[number], routes=routes)

    async def start(self) -> None:
        self.servers = [self._server(number, -1) for number in range(SERVERS)]
        await asyncio.gather(*(server.start() for server in self.servers))

    def _server(self, number: int, port: int) -> NatsServer:
        return NatsServer(
            self._folder / f"s{number}",
            port=port,
            log_path=self._folder / f"{number}.log",
            config=self.config(number),
        )

    async def restart(self, number: int) -> None:
        """Restart a server with what was written last; its port stays."""
        await self.servers[number].stop()
        self.servers[number] = self._server(number, self.servers[number].port)
        await self.servers[number].start()

    async def login(self, number: int, label: str) -> NatsConnection:
        self.mesh.server = self.servers[number]
        return await self.mesh.login(label)

    async def streams(self, *buckets: str) -> None:
        keys = self.mesh.options.out / ("creds" if self.mesh.options.operator else "seeds")
        urls = ",".join(server.url for server in self.servers)
        nats = NatsSettings(nats_url=urls, stream_replicas=SERVERS, stream_max_bytes=STREAM_BYTES)
        await make_streams(StreamsOptions(bucket=buckets, admin_keys=keys, nats=nats))

    async def stop(self) -> None:
        await self.mesh.stack.aclose()
        for server in self.servers:
            await server.stop()


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    options = AccountsOptions(
        out=tmp_path / "accounts",
        operator=request.param == "operator",
        cluster="n0,n1,n2",
        worker=("chat/w0",),
        router=("chat/r0",),
    )
    mesh = LockedMesh(options, tmp_path)
    mesh.write()
    cluster = Cluster(tmp_path, mesh)
    try:
        await cluster.start()
        await cluster.streams("chat")
        yield cluster
    finally:
        await cluster.stop()


async def receive(cluster: Cluster, bucket: str, received: list[int]) -> None:
    """Have a router at each server note its server's number for every heartbeat of a worker."""
    for number in range(SERVERS):
        router = await cluster.login(number, f"router.{bucket}.r0")
        subject = Subjects("kvmesh", bucket).heartbeats()
        await router.client.listen(subject, lambda *_, number=number: received.append(number))
        await router.flush()


async def check_heard(
    worker: NatsConnection, subject: str, received: list[int], everyone: set[int]
) -> None:
    """Say it until everyone has heard it: interest takes its time to spread."""
    received.clear()
    async with asyncio.timeout(30):
        while set(received) < everyone:
            worker.client.publish_nowait(subject, b"alive")
            await asyncio.sleep(TRIES_S)


async def stored(worker: NatsConnection, subject: str) -> int:
    """Append until it is acknowledged: the stream's servers may be electing a leader."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(TransportError):
                return await JetStream(worker, timeout_s=1.0).publish(subject, b"an event")
            await asyncio.sleep(TRIES_S)


@pytest.mark.parametrize("cluster", ["accounts.conf", "operator"], indirect=True)
async def test_workers_and_routers_of_different_servers_hear_each_other(cluster: Cluster) -> None:
    chat = Subjects("kvmesh", "chat")
    received: list[int] = []
    await receive(cluster, "chat", received)
    worker = await cluster.login(1, "worker.chat.w0")
    await worker.client.listen(
        chat.control("w0"),
        lambda _, reply, *__: worker.client.publish_nowait(reply.decode(), b"done"),
    )
    await worker.flush()

    await check_heard(worker, chat.heartbeats("w0"), received, {0, 1, 2})
    assert await stored(worker, chat.events("w0")) == 1
    router = await cluster.login(2, "router.chat.r0")
    assert (await router.request(chat.control("w0"), b"drain", timeout_s=20)).data == b"done"


@pytest.mark.chaos
@pytest.mark.parametrize("cluster", ["accounts.conf", "operator"], indirect=True)
async def test_servers_restarted_one_by_one_learn_a_new_bucket(cluster: Cluster) -> None:
    mesh, code = cluster.mesh, Subjects("kvmesh", "code")
    received: list[int] = []
    mesh.options = replace(
        mesh.options, worker=("chat/w0", "code/v0"), router=("chat/r0", "code/r0")
    )
    mesh.write()

    for number in range(SERVERS):
        await cluster.restart(number)
        if number == 0:
            # It listens while its neighbours do not know its account yet.
            early = await cluster.login(0, "router.code.r0")
            await early.client.listen(code.heartbeats(), lambda *_: received.append(EARLY))
            await early.flush()
    await cluster.streams("chat", "code")

    await receive(cluster, "code", received)
    for number in range(SERVERS):
        worker = await cluster.login(number, "worker.code.v0")
        await check_heard(worker, code.heartbeats("v0"), received, {EARLY, 0, 1, 2})
        assert await stored(worker, code.events("v0")) == number + 1
