"""Signatures cross accounts, of the server's file and of JWTs alike: what arrives is believed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.messages import Drain
from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import nats_plane
from kvmesh.app.ops.nats_accounts import write_trust
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.transport.nats.plane import NatsPlane
from tests.integration.support.locked_mesh import LockedMesh

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")


@pytest.mark.parametrize("operator", [False, True], ids=["keys", "operator"])
async def test_heartbeats_commands_and_leases_are_believed_in_other_accounts(
    tmp_path: Path, eventually: Any, operator: bool
) -> None:
    out = tmp_path / "accounts"
    options = AccountsOptions(
        out=out, worker=("code/w7:2",), router=("code/r1",), operator=operator
    )
    mesh = LockedMesh(options, tmp_path)
    mesh.write()
    trust = write_trust(out, mesh.members)
    received: list[str] = []
    drained: list[bool] = []

    async def plane(label: str, *names: str) -> NatsPlane:
        one = nats_plane(dataclasses.replace(mesh.settings(label), nats_trust=trust), *names)
        await one.connect()
        mesh.stack.push_async_callback(one.close)
        return one

    async def drain(command: Drain) -> bool:
        drained.append(command.draining)
        return True

    async with mesh.stack:
        await mesh.start()
        mesh.stack.push_async_callback(mesh.server.stop)
        await mesh.streams("code")
        router = await plane("router.code.r1", "router", "code", "r1")
        worker = await plane("worker.code.w7", "worker", "code", "w7")
        meta = await plane("meta-router", "meta-router")
        await router.bus.subscribe(CODE.heartbeats(), lambda subject, _: received.append(subject))
        await meta.bus.subscribe("kvmesh.rt.*.*", lambda subject, _: received.append(subject))
        control = await worker.control((CODE.control("w7-dp1"),), {Drain: drain})
        asking = await router.control()

        worker.bus.publish(CODE.heartbeats("w7-dp0"), b"alive")
        router.bus.publish(CODE.routers("r1"), b"alive")
        await eventually(lambda: len(received) == 2)
        assert await asking.ask(CODE.control("w7-dp1"), Drain(), bool)
        keys, _ = await router.stores("code")
        await keys.put("lease.snap.code", b"r1", expected=None, ttl_s=60)
        entry = await keys.get("lease.snap.code")

        assert entry is not None
        assert entry.value == b"r1"
        assert sorted(received) == [CODE.heartbeats("w7-dp0"), CODE.routers("r1")]
        assert drained == [True]
        for one in (router, worker, meta):
            assert not any(one.unverified().counts.values())
        await control.close()
        await asking.close()
