"""Least rights on a real server: what a stolen key cannot do, and that real processes can work."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import connection_options
from kvmesh.app.ops.nats.accounts import write_accounts
from kvmesh.app.ops.nats.members import AccountsOptions
from kvmesh.app.ops.nats.server import find_nats_server
from kvmesh.errors import TransportError
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.journal.jetstream import JetStream
from kvmesh.transport.nats.layout import (
    home_bucket,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)
from kvmesh.transport.nats.link.connection import NatsConnection
from kvmesh.transport.nats.stores.kv import KeyValueOptions, NatsKeyValue
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")
STREAM = CODE.stream()


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(
        out=tmp_path / "accounts", worker=("code/w7", "code/w8"), router=("code/r1", "code/r2")
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        yield mesh


async def messages(admin: JetStream, stream: str) -> int:
    return (await admin.stream_info(stream)).state.messages


def test_the_server_takes_the_configuration_as_written(tmp_path: Path) -> None:
    path = write_accounts(AccountsOptions(out=tmp_path, worker=("code/w7:8",), router=("code/*",)))

    check = subprocess.run([find_nats_server(), "-t", "-c", path], capture_output=True, check=False)

    assert check.returncode == 0, check.stderr.decode()


async def test_nobody_comes_in_without_a_key(mesh: LockedMesh) -> None:
    connection = NatsConnection(
        connection_options(NatsSettings(nats_url=mesh.server.url), "stranger")
    )

    with pytest.raises(TransportError, match=r"(?i)authorization"):
        await connection.connect()


FORBIDDEN_TO_A_WORKER = {
    "another worker's events": CODE.events("w8"),
    "another worker's heartbeat": CODE.heartbeats("w8"),
    "another bucket's events": "kvmesh.ev.chat.w7",
    "a router's heartbeat": CODE.routers("r1"),
    "a router's bookings": CODE.bookings("r1"),
    "a command to another worker": CODE.control("w8"),
    "a command to a router": CODE.router_control("r1"),
    "a key of the KV bucket": f"$KV.{meta_bucket('kvmesh')}.manifest.code",
    "a snapshot chunk": f"$O.{snapshot_bucket(CODE)}.C.x",
    "the stream's purge": f"$JS.API.STREAM.PURGE.{STREAM}",
    "the stream's deletion": f"$JS.API.STREAM.DELETE.{STREAM}",
    "the stream's settings": f"$JS.API.STREAM.UPDATE.{STREAM}",
    "a message's deletion": f"$JS.API.STREAM.MSG.DELETE.{STREAM}",
    "reading the stream": f"$JS.API.CONSUMER.CREATE.{STREAM}.x",
    "reading one message": f"$JS.API.DIRECT.GET.{STREAM}",
    "the purge of the KV bucket": f"$JS.API.STREAM.PURGE.KV_{meta_bucket('kvmesh')}",
    "another worker's inbox": "_INBOX.worker.code.w8.x",
}


@pytest.mark.parametrize("what", FORBIDDEN_TO_A_WORKER)
async def test_a_stolen_worker_key_cannot_write(
    mesh: LockedMesh, eventually: Any, what: str
) -> None:
    subject = FORBIDDEN_TO_A_WORKER[what]
    admin = JetStream(await mesh.login("admin.code", "admin"))
    router = await mesh.login("router.code.r1")
    await NatsKeyValue(router, KeyValueOptions(bucket=meta_bucket("kvmesh"))).put(
        "manifest.code", b"true", expected=0
    )
    worker = await mesh.login("worker.code.w7")
    received: list[str] = []
    await router.client.listen(CODE.heartbeats(), lambda subject, *_: received.append(subject))
    await router.flush()
    await JetStream(worker).publish(CODE.events("w7"), b"mine")

    with pytest.raises(TransportError):
        await worker.request(subject, b"", timeout_s=0.3)

    await eventually(lambda: worker.statistics().errors, what="the server's refusal")
    assert worker.connected
    assert not received
    assert await messages(admin, STREAM) == 1
    assert await messages(admin, f"KV_{meta_bucket('kvmesh')}") == 1
    assert await messages(admin, f"OBJ_{snapshot_bucket(CODE)}") == 0


OTHER_BUCKET = Subjects("kvmesh", "chat")
FORBIDDEN_TO_A_ROUTER = {
    "a worker's events": CODE.events("w7"),
    "a worker's heartbeat": CODE.heartbeats("w7"),
    "another router's heartbeat": CODE.routers("r2"),
    "another router's bookings": CODE.bookings("r2"),
    "a command in another bucket": OTHER_BUCKET.control("w1"),
    "a command to another bucket's router": OTHER_BUCKET.router_control("r1"),
    "the stream's deletion": f"$JS.API.STREAM.DELETE.{STREAM}",
    "the stream's settings": f"$JS.API.STREAM.UPDATE.{STREAM}",
    "another stream's making": "$JS.API.STREAM.CREATE.OTHER",
    "the purge of the KV bucket": f"$JS.API.STREAM.PURGE.KV_{meta_bucket('kvmesh')}",
    "reading another bucket's events": f"$JS.API.CONSUMER.CREATE.{OTHER_BUCKET.stream()}.x",
    "purging another bucket's events": f"$JS.API.STREAM.PURGE.{OTHER_BUCKET.stream()}",
    "another bucket's snapshots": f"$O.{snapshot_bucket(OTHER_BUCKET)}.C.x",
}


@pytest.mark.parametrize("what", FORBIDDEN_TO_A_ROUTER)
async def test_a_stolen_router_key_cannot_write(
    mesh: LockedMesh, eventually: Any, what: str
) -> None:
    admin = JetStream(await mesh.login("admin.code", "admin"))
    router = await mesh.login("router.code.r1")

    with pytest.raises(TransportError):
        await router.request(FORBIDDEN_TO_A_ROUTER[what], b"", timeout_s=0.3)

    await eventually(lambda: router.statistics().errors, what="the server's refusal")
    assert await messages(admin, STREAM) == 0


FORBIDDEN_TO_A_META_ROUTER = {
    "a router's heartbeat": CODE.routers("r1"),
    "a command to a router": CODE.router_control("r1"),
    "a session": f"$KV.{session_bucket(CODE)}.x",
    "reading events": f"$JS.API.CONSUMER.CREATE.{STREAM}.x",
    "the purge of its table": f"$JS.API.STREAM.PURGE.KV_{home_bucket('kvmesh')}",
    "another stream's making": "$JS.API.STREAM.CREATE.OTHER",
}


@pytest.mark.parametrize("what", FORBIDDEN_TO_A_META_ROUTER)
async def test_a_stolen_meta_router_key_writes_no_more_than_homes(
    mesh: LockedMesh, eventually: Any, what: str
) -> None:
    meta = await mesh.login("meta-router")

    with pytest.raises(TransportError):
        await meta.request(FORBIDDEN_TO_A_META_ROUTER[what], b"", timeout_s=0.3)

    await eventually(lambda: meta.statistics().errors, what="the server's refusal")


async def test_the_admin_key_writes_no_events(mesh: LockedMesh, eventually: Any) -> None:
    admin = await mesh.login("admin.code", "admin")

    with pytest.raises(TransportError):
        await admin.request(CODE.events("w7"), b"", timeout_s=0.3)

    await eventually(lambda: admin.statistics().errors, what="the server's refusal")
    assert await messages(JetStream(admin), STREAM) == 0


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "kvmesh.>",
        CODE.events(),
        CODE.heartbeats("w8"),
        CODE.control("w8"),
        CODE.control(),
        CODE.router_control("r1"),
        CODE.bookings(),
        "_INBOX.>",
        "_INBOX.router.code.r1.>",
        "$JS.>",
        "$SYS.>",
    ],
)
async def test_a_stolen_worker_key_cannot_listen(
    mesh: LockedMesh, eventually: Any, subject: str
) -> None:
    worker = await mesh.login("worker.code.w7")

    await worker.client.listen(subject, lambda *_: None)

    await eventually(lambda: worker.statistics().errors, what=f"refusal of {subject}")


async def test_a_worker_cannot_wipe_the_stream_by_a_rollup_on_its_own_subject(
    mesh: LockedMesh,
) -> None:
    admin = JetStream(await mesh.login("admin.code", "admin"))
    worker, other = await mesh.login("worker.code.w7"), await mesh.login("worker.code.w8")
    await JetStream(other).publish(CODE.events("w8"), b"of the other")

    for scope in ("all", "sub"):
        with pytest.raises(TransportError, match=r"(?i)rollup"):
            await JetStream(worker).publish(CODE.events("w7"), b"x", {"Nats-Rollup": scope})

    assert await messages(admin, STREAM) == 1


FORBIDDEN = {
    "worker.code.w7": FORBIDDEN_TO_A_WORKER,
    "router.code.r1": FORBIDDEN_TO_A_ROUTER,
    "meta-router": FORBIDDEN_TO_A_META_ROUTER,
}


@pytest.mark.parametrize("label", FORBIDDEN)
async def test_a_stolen_credentials_file_cannot_write_either(
    tmp_path: Path, eventually: Any, label: str
) -> None:
    options = AccountsOptions(
        out=tmp_path / "accounts", operator=True, worker=("code/w7",), router=("code/r1",)
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        thief = await mesh.login(label)

        for subject in FORBIDDEN[label].values():
            thief.client.publish_nowait(subject, b"")

        refusals = len(FORBIDDEN[label])
        await eventually(lambda: thief.statistics().errors == refusals, what="every refusal")
