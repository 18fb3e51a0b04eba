"""Each key is rotated as docs/operate/runbook.md says, the old one locked out."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import connection_options
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.errors import TransportError
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.link.connection import NatsConnection
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")
KEYS = ["worker.code.w7", "router.code.r1", "router.code.my-follower", "meta-router"]
KEYS += ["admin.code", "admin"]


@pytest.fixture(params=["accounts.conf", "operator"])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(
        out=tmp_path / "accounts",
        operator=request.param == "operator",
        worker=("code/w7", "code/w8"),
        router=("code/r1", "code/my-follower"),
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        yield mesh


def copied(mesh: LockedMesh, label: str) -> NatsSettings:
    """Return how a thief logs in who has a copy of the key."""
    settings = mesh.settings(label)
    path = settings.nats_creds
    assert path is not None
    stolen = mesh.options.out / f"stolen{path.suffix}"
    shutil.copy(path, stolen)
    return replace(settings, nats_creds=stolen)


@pytest.mark.parametrize("label", KEYS)
async def test_a_new_key_locks_the_old_one_out(
    mesh: LockedMesh, eventually: Any, label: str
) -> None:
    names = ("admin",) if label.startswith("admin") else tuple(label.split("."))
    thief = await mesh.login(label, *names)
    stolen = copied(mesh, label)
    bystander = await mesh.login("worker.code.w8")
    (mesh.options.out / "seeds" / f"{label}.nk").unlink()

    mesh.write()
    await mesh.reload()

    await eventually(lambda: not thief.connected, what="the old key's connection is cut")
    again = NatsConnection(connection_options(stolen, *names))
    with pytest.raises(TransportError, match=r"(?i)authorization"):
        await again.connect()
    assert (await mesh.login(label, *names)).connected
    assert bystander.statistics().reconnects == 0
    assert await JetStream(bystander).publish(CODE.events("w8"), b"an event") == 1


async def test_a_member_that_is_left_out_is_locked_out(mesh: LockedMesh, eventually: Any) -> None:
    thief = await mesh.login("worker.code.w7")
    stolen = copied(mesh, "worker.code.w7")
    mesh.options = replace(mesh.options, worker=("code/w8",))

    mesh.write()
    await mesh.reload()

    await eventually(lambda: not thief.connected, what="the old key's connection is cut")
    with pytest.raises(TransportError, match=r"(?i)authorization"):
        await NatsConnection(connection_options(stolen, "worker", "code", "w7")).connect()


async def test_a_run_that_changes_nothing_cuts_nobody_off(mesh: LockedMesh) -> None:
    worker = await mesh.login("worker.code.w7")
    mesh.write()

    await mesh.reload()

    assert await JetStream(worker).publish(CODE.events("w7"), b"an event") == 1
    assert worker.statistics().reconnects == 0


async def test_a_new_worker_and_bucket_are_connected_by_two_reloads(mesh: LockedMesh) -> None:
    """nats-server 2.15 connects the imports of a new account at the reload after the next; in
    operator mode one is enough, and a second does no harm.
    """
    bystander = await mesh.login("worker.code.w8")
    mesh.options = replace(
        mesh.options, worker=("code/w8", "code/w9", "chat/v1"), router=("code/r1", "chat/r1")
    )
    mesh.write()

    await mesh.reload()
    await mesh.reload()
    await mesh.streams("chat", "code")

    for bucket, name in (("code", "w9"), ("chat", "v1")):
        worker = await mesh.login(f"worker.{bucket}.{name}")
        subject = Subjects("kvmesh", bucket).events(name)
        assert await JetStream(worker).publish(subject, b"an event") == 1
    assert bystander.statistics().reconnects == 0


@pytest.mark.parametrize("mesh", ["operator"], indirect=True)
async def test_a_new_operator_takes_over_at_a_restart(mesh: LockedMesh) -> None:
    worker = await mesh.login("worker.code.w7")
    assert await JetStream(worker).publish(CODE.events("w7"), b"an event") == 1
    await worker.close()
    (mesh.options.out / "signing/operator.nk").unlink()
    mesh.write()

    await mesh.server.stop()
    await mesh.start()

    again = await mesh.login("worker.code.w7")
    assert await JetStream(again).publish(CODE.events("w7"), b"an event") == 2


@pytest.mark.parametrize("mesh", ["operator"], indirect=True)
async def test_a_new_account_key_locks_its_old_credentials_out(mesh: LockedMesh) -> None:
    stolen = copied(mesh, "router.code.r1")
    (mesh.options.out / "signing/account.bucket.code.nk").unlink()
    mesh.write()

    await mesh.server.stop()
    await mesh.start()
    await mesh.streams("code")

    stolen = replace(stolen, nats_url=mesh.server.url)
    with pytest.raises(TransportError, match=r"(?i)authorization"):
        await NatsConnection(connection_options(stolen, "router", "code", "r1")).connect()
    worker = await mesh.login("worker.code.w7")
    assert await JetStream(worker).publish(CODE.events("w7"), b"an event") == 1
