"""Signed messages on a real server: one account, no permissions, and keys that were stolen."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import kvmesh
from kvmesh import FollowOptions, KvIndexer, NatsLogin, RegisterOptions
from kvmesh.actors.messages import Drain, RouterHeartbeat
from kvmesh.actors.snapshotter import lease_key, manifest_key
from kvmesh.actors.wire import Subjects, encode
from kvmesh.app.mesh.nats_plane import nats_plane
from kvmesh.app.ops.nats_accounts import write_accounts, write_trust
from kvmesh.app.ops.nats_members import AccountsOptions, keyed_members
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.index.snapshot_manifest import decode_manifest
from kvmesh.errors import CodecError, ConfigError, TransportError
from kvmesh.settings.roles import NatsSettings, SnapshotSettings
from kvmesh.transport.nats.layout import meta_bucket
from kvmesh.transport.nats.plane import NatsPlane
from kvmesh.transport.nats.trust.nkey import read_seed
from kvmesh.transport.nats.trust.signer import Signer
from tests.integration.support.live_router import client_of, meta_router, mockers, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")
WORKERS = ("code/w7", "code/w8")
ROUTERS = ("code/r1", "code/f1", "chat/r1")
META = meta_bucket("kvmesh")


class Mesh:
    """A server that lets every key do everything, and the doors in."""

    def __init__(self, server: NatsServer, out: Path, stack: contextlib.AsyncExitStack) -> None:
        self.server = server
        self.out = out
        self.trust = out / "trust.json"
        self._stack = stack

    def seed(self, who: str) -> Path:
        return self.out / "seeds" / f"{who}.nk"

    def settings(self, who: str, *, trust: bool = True) -> NatsSettings:
        return NatsSettings(
            nats_url=self.server.url,
            nats_creds=self.seed(who),
            nats_trust=self.trust if trust else None,
            stream_max_bytes=32 * 1024**2,
        )

    async def plane(self, who: str, *, trust: bool = True) -> NatsPlane:
        plane = nats_plane(self.settings(who, trust=trust), *who.split("."))
        await plane.connect()
        self._stack.push_async_callback(plane.close)
        return plane


def options(out: Path) -> AccountsOptions:
    return AccountsOptions(out=out, worker=WORKERS, router=ROUTERS)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    out = tmp_path / "accounts"
    write_accounts(options(out))
    users = [{"nkey": one.public_key} for one in keyed_members(options(out))]
    config = {"accounts": {"ALL": {"jetstream": "enabled", "users": users}}}
    server = NatsServer(tmp_path / "store", config=msgspec.json.encode(config).decode())
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        yield Mesh(server, out, stack)


class GatewayMessage:
    """Keeps what comes to one subscription."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def __call__(self, subject: str, data: bytes) -> None:
        del subject
        self.data.append(data)


class Worker:
    """Answers `Drain` as a sidecar does."""

    def __init__(self) -> None:
        self.drained = 0

    async def on_drain(self, command: Drain) -> bool:
        del command
        self.drained += 1
        return True

    async def listen(self, plane: NatsPlane) -> None:
        await plane.control((CODE.control("w7"),), {Drain: self.on_drain})


def refused(plane: NatsPlane, reason: str, kind: str) -> int:
    return plane.unverified().counts[reason, kind]


async def test_no_key_but_a_routers_of_the_bucket_drains_a_worker(mesh: Mesh) -> None:
    plane, worker = await mesh.plane("worker.code.w7"), Worker()
    await worker.listen(plane)

    for thief in ("worker.code.w8", "worker.code.w7", "router.chat.r1", "meta-router", "admin"):
        control = await (await mesh.plane(thief)).control()
        with pytest.raises(TransportError, match="no answer"):
            await control.ask(CODE.control("w7"), Drain(), bool, timeout_s=0.2)
        await control.close()
    stolen = await mesh.plane("worker.code.w8")
    stolen.connection.signing.signer = None
    control = await stolen.control()
    with pytest.raises(TransportError, match="no answer"):
        await control.ask(CODE.control("w7"), Drain(), bool, timeout_s=0.2)

    assert worker.drained == 0
    assert refused(plane, "foreign", "command") == 5
    assert refused(plane, "unsigned", "command") == 1
    routers = await (await mesh.plane("router.code.r1")).control()
    assert await routers.ask(CODE.control("w7"), Drain(), bool)
    assert worker.drained == 1


async def test_what_is_refused_is_not_answered_so_no_reply_subject_is_written(
    mesh: Mesh, eventually: Any
) -> None:
    plane, worker = await mesh.plane("worker.code.w7"), Worker()
    await worker.listen(plane)
    thief = await mesh.plane("worker.code.w8")
    await (await mesh.plane("admin")).declare("code", 60)
    victim = f"$KV.{META}.{lease_key('code')}"

    thief.connection.client.publish_nowait(CODE.control("w7"), b"x", reply=victim)

    await eventually(lambda: refused(plane, "foreign", "command"))
    keys, _ = await (await mesh.plane("router.code.r1")).stores("code")
    assert await keys.get(lease_key("code")) is None


async def test_a_recorded_command_is_carried_out_once(mesh: Mesh, eventually: Any) -> None:
    plane, worker = await mesh.plane("worker.code.w7"), Worker()
    await worker.listen(plane)
    thief = await mesh.plane("worker.code.w8", trust=False)
    thief.connection.signing.signer = None
    recorded: list[tuple[bytes, bytes | None]] = []
    await thief.connection.client.listen(
        CODE.control("w7"), lambda _, __, data, headers: recorded.append((data, headers))
    )
    await thief.connection.flush()
    routers = await (await mesh.plane("router.code.r1")).control()
    await routers.ask(CODE.control("w7"), Drain(), bool)
    await eventually(lambda: recorded)
    data, headers = recorded[0]
    assert headers is not None
    lines = headers.decode().split("\r\n")[1:]
    again = dict(line.split(": ", 1) for line in lines if line.startswith("Kvmesh"))

    await thief.connection.client.publish(CODE.control("w7"), data, headers=again)

    await eventually(lambda: refused(plane, "stale", "command"), what="the recording is refused")
    assert worker.drained == 1
    await thief.connection.client.publish(CODE.control("w7"), data[:-1] + b"\xc3", headers=again)
    await thief.connection.client.publish(CODE.control("w8"), data, headers=again)
    assert await routers.ask(CODE.control("w7"), Drain(), bool)
    assert worker.drained == 2


async def test_a_worker_sends_no_heartbeat_but_its_own(mesh: Mesh, eventually: Any) -> None:
    ears, received = await mesh.plane("router.code.r1"), GatewayMessage()
    await ears.bus.subscribe(CODE.heartbeats(), received)
    await ears.bus.subscribe(CODE.routers(), received)
    thief, worker = await mesh.plane("worker.code.w8"), await mesh.plane("worker.code.w7")

    thief.bus.publish(CODE.heartbeats("w7"), b"forged")
    thief.bus.publish(CODE.routers("r1"), b"forged")
    await thief.connection.flush()
    worker.bus.publish(CODE.heartbeats("w7"), b"mine")
    ears.bus.publish(CODE.routers("r1"), b"my own")

    await eventually(lambda: len(received.data) == 2)
    assert sorted(received.data) == [b"mine", b"my own"]
    assert refused(ears, "foreign", "worker heartbeat") == 1
    assert refused(ears, "foreign", "router heartbeat") == 1
    assert any("kvmesh.hb.code.w7" in line for line in ears.warnings())


async def test_a_wrong_clock_is_named_with_its_skew(mesh: Mesh, eventually: Any) -> None:
    ears, received = await mesh.plane("router.code.r1"), GatewayMessage()
    await ears.bus.subscribe(CODE.heartbeats(), received)
    worker = await mesh.plane("worker.code.w7")
    seed = read_seed(mesh.seed("worker.code.w7"))
    assert seed is not None
    slow = Signer("kvmesh", seed, wall_ns=lambda: time.time_ns() - 600_000_000_000)
    worker.connection.signing.signer = slow

    worker.bus.publish(CODE.heartbeats("w7"), b"late")

    await eventually(lambda: refused(ears, "stale", "worker heartbeat"))
    assert not received.data
    assert -601 < ears.unverified().skews_s["code/w7"] < -599
    assert any("the clock of code/w7 is 600 s behind" in line for line in ears.warnings())


async def test_old_processes_are_understood_until_routers_are_given_the_trust_file(
    mesh: Mesh, eventually: Any
) -> None:
    old = await mesh.plane("worker.code.w7", trust=False)
    old.connection.signing.signer = None
    before, after = await mesh.plane("router.code.r1", trust=False), GatewayMessage()
    strict = await mesh.plane("router.code.r1")
    received = GatewayMessage()
    await before.bus.subscribe(CODE.heartbeats(), received)
    await strict.bus.subscribe(CODE.heartbeats(), after)
    raw = GatewayMessage()
    await old.bus.subscribe(CODE.routers(), raw)

    old.bus.publish(CODE.heartbeats("w7"), b"unsigned")
    strict.bus.publish(CODE.routers("r1"), b"signed")

    await eventually(lambda: received.data == [b"unsigned"] and raw.data == [b"signed"])
    await eventually(lambda: refused(strict, "unsigned", "worker heartbeat"))
    assert not after.data
    assert before.unverified().counts == {}


async def test_a_new_key_counts_when_the_trust_file_has_it(mesh: Mesh, eventually: Any) -> None:
    ears, received = await mesh.plane("router.code.r1"), GatewayMessage()
    await ears.bus.subscribe(CODE.heartbeats(), received)
    worker = await mesh.plane("worker.code.w7")
    mesh.seed("worker.code.w7").unlink()
    members = keyed_members(options(mesh.out))
    seed = read_seed(mesh.seed("worker.code.w7"))
    assert seed is not None

    def speaks() -> bool:
        worker.bus.publish(CODE.heartbeats("w7"), b"alive")
        return bool(received.data)

    assert worker.connection.signing.signer is not None
    former, renewed = worker.connection.signing.signer, Signer("kvmesh", seed)
    worker.connection.signing.signer = renewed
    speaks()
    await eventually(lambda: refused(ears, "foreign", "worker heartbeat"))
    write_trust(mesh.out, members)
    await eventually(speaks, what="the new key is believed")
    worker.connection.signing.signer = former
    before = refused(ears, "foreign", "worker heartbeat")
    speaks()
    await eventually(lambda: refused(ears, "foreign", "worker heartbeat") > before)

    mesh.trust.write_text("{")
    await eventually(lambda: any("the old one stays" in line for line in ears.warnings()))
    worker.connection.signing.signer = renewed
    received.data.clear()
    await eventually(speaks)


async def test_a_meta_router_hears_no_router_that_is_none(mesh: Mesh) -> None:
    await (await mesh.plane("admin")).homes(60, 100)
    thief = await mesh.plane("worker.code.w8")
    beat = RouterHeartbeat("r1", "code", "http://127.0.0.1:9", ready=True, epoch=1)
    async with (
        client_of(meta_router([], nats=mesh.settings("meta-router"), path="/health")) as client,
    ):

        async def warned() -> bool:
            thief.bus.publish(CODE.routers("r1"), encode(beat))
            ready = (await client.get("/ready")).json()
            return any(CODE.routers("r1") in line for line in ready.get("warnings", ()))

        await until(warned)
        metrics = (await client.get("/metrics")).text
        replicas = (await client.get("/v1/status")).json()["replicas"]
    reported = 'kvmesh_unverified_messages_total{kind="router heartbeat",reason="foreign"} '
    assert float(metrics.split(reported)[1].split()[0]) >= 1
    assert not replicas


async def test_a_trust_file_needs_a_key_and_must_be_one(mesh: Mesh, tmp_path: Path) -> None:
    alone = NatsSettings(nats_url=mesh.server.url, nats_trust=mesh.trust)
    with pytest.raises(ConfigError, match="needs --nats-creds"):
        await nats_plane(alone, "router", "code", "r1").connect()
    mesh.trust = tmp_path / "none.json"
    with pytest.raises(ConfigError, match=r"--nats-trust .*none.json: No such file"):
        await mesh.plane("router.code.r1")


async def test_values_that_a_worker_puts_into_lease_and_manifest_stop_no_snapshot(
    mesh: Mesh, eventually: Any
) -> None:
    """The server stores its acknowledgement where a publisher's reply subject points."""
    thief = await mesh.plane("worker.code.w8")
    router_plane = await mesh.plane("router.code.r1")
    await router_plane.declare("code", 60)
    keys, _ = await router_plane.stores("code")
    lease, manifest = lease_key("code"), manifest_key("code")

    def spoil() -> None:
        for number, key in enumerate((lease, manifest)):
            thief.connection.client.publish_nowait(
                CODE.events("w8"), b"%d" % number, reply=f"$KV.{META}.{key}"
            )

    async def snapshots() -> int:
        entry = await keys.get(manifest)
        with contextlib.suppress(CodecError):
            found = decode_manifest(None if entry is None else entry.value)
            return max((one.sequence for one in found.generations), default=0)
        return 0

    spoil()
    await thief.connection.flush()
    stuck = await keys.get(lease)
    assert stuck is not None
    assert stuck.value == b""
    as_worker = NatsLogin(creds=mesh.seed("worker.code.w7"), trust=mesh.trust)
    as_router = NatsLogin(creds=mesh.seed("router.code.f1"), trust=mesh.trust)
    async with (
        mockers(timing_profile="dynamo") as (engine,),
        router(
            [],
            bucket="code",
            router_id="r1",
            kv_events=True,
            path="/health",
            nats=mesh.settings("router.code.r1"),
            snapshot=SnapshotSettings(snapshot_messages=1, snapshot_interval_s=0.5),
        ) as url,
        kvmesh.register_llm(
            engine.url, mesh.server.url, "code", RegisterOptions(worker_id="w7", login=as_worker)
        ),
        kvmesh.follow(
            mesh.server.url, "code", FollowOptions(name="f1", login=as_router)
        ) as listener,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        body = {"model": "mock", "prompt": [7] * 320, "max_tokens": 1}

        async def is_served_and_kept() -> bool:
            served = await client.post("/v1/completions", json=body)
            return served.status_code == 200 and bool(await snapshots())

        await until(is_served_and_kept)
        indexer = KvIndexer(listener)
        await eventually(lambda: indexer.find_matches([7] * 320) == {"w7": 20})
        ready = (await client.get("/ready")).json()
        metrics = (await client.get("/metrics")).text
        signatures = (await client.get("/v1/status")).json()["mesh"]["signatures"]
    assert 'kvmesh_unverified_messages_total{kind="lease",reason="unsigned"}' in metrics
    overridden = [line for line in metrics.splitlines() if "keys_overridden_total " in line]
    assert float(overridden[-1].split()[-1]) >= 2
    assert any(f"{META}.{lease}" in line for line in ready["warnings"])
    assert signatures["verifies"]
    assert set(signatures["refused"]) <= set(ready["warnings"])
