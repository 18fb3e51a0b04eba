"""The two attacks that one account for all allowed: there they work, so the table can fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import connection_options
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.nats_streams import StreamsOptions, make_streams
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.layout import meta_bucket, session_bucket
from kvmesh.transport.nats.link.connection import NatsConnection
from tests.integration.support.pens import Attack, Thief, ack, push, use
from tests.integration.support.single_account import seed, write_single_account

pytestmark = pytest.mark.integration

CHAT, CODE = Subjects("kvmesh", "chat"), Subjects("kvmesh", "code")
LEASE = f"$KV.{meta_bucket('kvmesh')}.lease.snap.code"


class Old:
    """A server with one account, and its doors."""

    def __init__(self, settings: NatsSettings, out: Path, stack: contextlib.AsyncExitStack) -> None:
        self._settings = settings
        self._out = out
        self._stack = stack

    async def login(self, label: str) -> NatsConnection:
        settings = replace(self._settings, nats_creds=seed(self._out, label))
        connection = NatsConnection(connection_options(settings, *label.split(".")))
        await connection.connect()
        self._stack.push_async_callback(connection.close)
        return connection


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Old]:
    out = tmp_path / "accounts"
    options = AccountsOptions(out=out, worker=("chat/w0", "code/v1"), router=("chat/r0", "code/r1"))
    server = NatsServer(tmp_path / "store", config=write_single_account(options))
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        settings = NatsSettings(nats_url=server.url, stream_max_bytes=32 * 1024**2)
        admin = replace(settings, nats_creds=seed(out, "admin"))
        await make_streams(StreamsOptions(bucket=("chat", "code"), nats=admin))
        yield Old(settings, out, stack)


def thief(label: str, **means: str) -> Thief:
    return Thief(label=label, names=(), home="", own="", heard_in="", **means)


async def test_a_routers_push_consumer_commands_another_buckets_worker(old: Old) -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()
    worker = await old.login("worker.code.v1")
    await worker.client.listen(CODE.control("v1"), lambda *message: received.put_nowait(message[2]))
    await worker.flush()
    router = await old.login("router.chat.r0")
    await JetStream(router).publish(f"$KV.{session_bucket(CHAT)}.x", b"a command")

    means: dict[str, Any] = {"stream": f"KV_{session_bucket(CHAT)}"}
    await use(push, Attack(thief("router.chat.r0", **means), router), CODE.control("v1"))

    async with asyncio.timeout(20):
        assert await received.get() == b"a command"


async def test_a_workers_ack_becomes_another_buckets_lease(old: Old) -> None:
    worker, admin = await old.login("worker.chat.w0"), JetStream(await old.login("admin"))

    await use(ack, Attack(thief("worker.chat.w0", stored=CHAT.events("w0")), worker), LEASE)

    async with asyncio.timeout(20):
        while (lease := await admin.last_message(f"KV_{meta_bucket('kvmesh')}", LEASE)) is None:
            await worker.flush()
    assert b"KVMESH_EVENTS_chat" in lease.data
