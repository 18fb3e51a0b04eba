"""Least rights on a real server: what a stolen key cannot do, and that real processes can work."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import connection_options
from kvmesh.app.ops.nats_accounts import write_accounts
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import find_nats_server
from kvmesh.errors import TransportError
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.layout import (
    home_bucket,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)
from kvmesh.transport.nats.link.connection import NatsConnection
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


FORBIDDEN_TO_A_META_ROUTER = {
    "a router's heartbeat": CODE.routers("r1"),
    "a command to a router": CODE.router_control("r1"),
    "a session": f"$KV.{session_bucket(CODE)}.x",
    "reading events": f"$JS.API.CONSUMER.CREATE.{STREAM}.x",
    "the purge of its table": f"$JS.API.STREAM.PURGE.KV_{home_bucket('kvmesh')}",
    "another stream's making": "$JS.API.STREAM.CREATE.OTHER",
}


FORBIDDEN = {
    "worker.code.w7": FORBIDDEN_TO_A_WORKER,
    "router.code.r1": FORBIDDEN_TO_A_ROUTER,
    "meta-router": FORBIDDEN_TO_A_META_ROUTER,
    "admin.code": {"a worker's events": CODE.events("w7")},
}
NOT_FOR_A_WORKERS_EAR = (
    *(">", "kvmesh.>", "$JS.>", "$SYS.>", "_INBOX.>", "_INBOX.router.code.r1.>"),
    *(CODE.events(), CODE.heartbeats("w8"), CODE.control("w8"), CODE.control()),
    *(CODE.router_control("r1"), CODE.bookings()),
)


@pytest.mark.parametrize("operator", [False, True], ids=["keys", "credentials"])
async def test_a_stolen_key_cannot_write(
    tmp_path: Path, eventually: Any, *, operator: bool
) -> None:
    options = AccountsOptions(
        out=tmp_path / "accounts",
        operator=operator,
        worker=("code/w7", "code/w8"),
        router=("code/r1", "code/r2"),
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        admin = JetStream(await mesh.login("admin.code", "admin"))
        router, worker = [await mesh.login(label) for label in ("router.code.r2", "worker.code.w7")]
        await NatsKeyValue(router, KeyValueOptions(bucket=meta_bucket("kvmesh"))).put(
            "manifest.code", b"true", expected=0
        )
        received: list[str] = []
        await router.client.listen(CODE.heartbeats(), lambda subject, *_: received.append(subject))
        await router.flush()
        await JetStream(worker).publish(CODE.events("w7"), b"mine")

        for label, subjects in FORBIDDEN.items():
            names = ("admin",) if label.startswith("admin") else ()
            thief = await mesh.login(label, *names)
            for count, (what, subject) in enumerate(subjects.items(), 1):
                thief.client.publish_nowait(subject, b"")
                await eventually(
                    lambda thief=thief, count=count: thief.statistics().errors == count,
                    what=f"{label} is refused {what}",
                )
            assert thief.connected

        assert not received
        assert await messages(admin, STREAM) == 1
        assert await messages(admin, f"KV_{meta_bucket('kvmesh')}") == 1
        assert await messages(admin, f"OBJ_{snapshot_bucket(CODE)}") == 0


async def test_a_refused_request_has_no_answer(mesh: LockedMesh, eventually: Any) -> None:
    worker = await mesh.login("worker.code.w7")

    with pytest.raises(TransportError):
        await worker.request(CODE.control("w8"), b"", timeout_s=0.3)

    await eventually(lambda: worker.statistics().errors, what="the server's refusal")


async def test_a_stolen_worker_key_cannot_listen(mesh: LockedMesh, eventually: Any) -> None:
    worker = await mesh.login("worker.code.w7")

    for count, subject in enumerate(NOT_FOR_A_WORKERS_EAR, 1):
        await worker.client.listen(subject, lambda *_: None)
        await eventually(
            lambda count=count: worker.statistics().errors == count, what=f"refusal of {subject}"
        )


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
