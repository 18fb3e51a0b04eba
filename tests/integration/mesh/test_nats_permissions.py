"""Least rights on a real server: what a stolen key cannot do, and that real processes can work."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import nats.errors
import pytest

import kvmesh
from kvmesh import FollowOptions, KvIndexer, NatsLogin, RegisterOptions
from kvmesh.actors.wire import Subjects
from kvmesh.app.nats.accounts import write_accounts
from kvmesh.app.nats.members import AccountsOptions
from kvmesh.app.nats.plane import connection_options, nats_plane
from kvmesh.app.nats.server import NatsServer, find_nats_server
from kvmesh.app.nats.streams import StreamsOptions, make_streams
from kvmesh.errors import TransportError
from kvmesh.mocker.command import Mocker, MockerOptions
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.journal.jetstream import JetStream
from kvmesh.transport.nats.layout import (
    home_bucket,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)
from kvmesh.transport.nats.link.connection import NatsConnection
from kvmesh.transport.nats.plane import NatsPlane
from kvmesh.transport.nats.stores.kv import KeyValueOptions, NatsKeyValue

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")
STREAM = CODE.stream()
ROLES = {
    "admin": ("admin",),
    "meta-router": ("meta-router",),
    "worker.code.w7": ("worker", "code", "w7"),
    "worker.code.w8": ("worker", "code", "w8"),
    "router.code.r1": ("router", "code", "r1"),
    "router.code.r2": ("router", "code", "r2"),
}


class Mesh:
    """A server with accounts, and the doors in."""

    def __init__(self, server: NatsServer, out: Path, stack: contextlib.AsyncExitStack) -> None:
        self.server = server
        self.out = out
        self._stack = stack

    def seed(self, who: str) -> Path:
        return self.out / "seeds" / f"{who}.nk"

    def settings(self, who: str) -> NatsSettings:
        return NatsSettings(
            nats_url=self.server.url, nats_nkey_seed=self.seed(who), stream_max_bytes=32 * 1024**2
        )

    async def login(self, who: str) -> NatsConnection:
        connection = NatsConnection(connection_options(self.settings(who), *ROLES[who]))
        await connection.connect()
        self._stack.push_async_callback(connection.close)
        return connection

    async def plane(self, who: str) -> NatsPlane:
        plane = nats_plane(self.settings(who), *ROLES[who])
        await plane.connect()
        self._stack.push_async_callback(plane.close)
        return plane


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    out = tmp_path / "accounts"
    write_accounts(
        AccountsOptions(out=out, worker=("code/w7", "code/w8"), router=("code/r1", "code/r2"))
    )
    config = (out / "accounts.conf").read_text()
    server = NatsServer(tmp_path / "store", log_path=tmp_path / "nats.log", config=config)
    async with contextlib.AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        mesh = Mesh(server, out, stack)
        await make_streams(StreamsOptions(bucket=("code",), nats=mesh.settings("admin")))
        yield mesh


async def messages(admin: JetStream, stream: str) -> int:
    return (await admin.stream_info(stream)).state.messages


def test_the_server_takes_the_configuration_as_written(tmp_path: Path) -> None:
    path = write_accounts(AccountsOptions(out=tmp_path, worker=("code/w7:8",), router=("code/*",)))

    check = subprocess.run([find_nats_server(), "-t", "-c", path], capture_output=True, check=False)

    assert check.returncode == 0, check.stderr.decode()


async def test_nobody_comes_in_without_a_key(mesh: Mesh) -> None:
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
async def test_a_stolen_worker_key_cannot_write(mesh: Mesh, eventually: Any, what: str) -> None:
    subject = FORBIDDEN_TO_A_WORKER[what]
    admin = JetStream(await mesh.login("admin"))
    router = await mesh.login("router.code.r1")
    await NatsKeyValue(router, KeyValueOptions(bucket=meta_bucket("kvmesh"))).put(
        "manifest.code", b"true", expected=0
    )
    worker = await mesh.login("worker.code.w7")
    heard: list[str] = []
    await router.client.listen(CODE.heartbeats(), lambda subject, *_: heard.append(subject))
    await router.flush()
    await JetStream(worker).publish(CODE.events("w7"), b"mine")

    with pytest.raises(TransportError):
        await worker.request(subject, b"", timeout_s=0.3)

    await eventually(lambda: worker.statistics().errors, what="the server's refusal")
    assert worker.connected
    assert not heard
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
async def test_a_stolen_router_key_cannot_write(mesh: Mesh, eventually: Any, what: str) -> None:
    admin = JetStream(await mesh.login("admin"))
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
    mesh: Mesh, eventually: Any, what: str
) -> None:
    meta = await mesh.login("meta-router")

    with pytest.raises(TransportError):
        await meta.request(FORBIDDEN_TO_A_META_ROUTER[what], b"", timeout_s=0.3)

    await eventually(lambda: meta.statistics().errors, what="the server's refusal")


async def test_meta_routers_share_homes_with_the_rights_they_have(
    mesh: Mesh, eventually: Any
) -> None:
    tables = [await (await mesh.plane("meta-router")).homes(3600, 131_072) for _ in range(2)]
    told = Told()
    await tables[1].follow(told)

    tables[0].put("00000000000000ff", b"code")

    await eventually(lambda: told.values, what="the home")
    assert told.values == {"00000000000000ff": b"code"}


class Told:
    """A TableListener that keeps what it is told."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def on_value(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def on_caught_up(self) -> None:
        """Nothing waits for it."""


async def test_the_admin_key_writes_no_events(mesh: Mesh, eventually: Any) -> None:
    admin = await mesh.login("admin")

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
async def test_a_stolen_worker_key_cannot_listen(mesh: Mesh, eventually: Any, subject: str) -> None:
    worker = await mesh.login("worker.code.w7")

    await worker.client.listen(subject, lambda *_: None)

    await eventually(lambda: worker.statistics().errors, what=f"refusal of {subject}")


async def test_a_worker_cannot_wipe_the_stream_by_a_rollup_on_its_own_subject(mesh: Mesh) -> None:
    admin = JetStream(await mesh.login("admin"))
    worker, other = await mesh.login("worker.code.w7"), await mesh.login("worker.code.w8")
    await JetStream(other).publish(CODE.events("w8"), b"of the other")

    for scope in ("all", "sub"):
        with pytest.raises(TransportError, match=r"(?i)rollup"):
            await JetStream(worker).publish(CODE.events("w7"), b"x", {"Nats-Rollup": scope})

    assert await messages(admin, STREAM) == 1


async def test_a_worker_gets_acks_and_its_own_commands_and_answers_them(mesh: Mesh) -> None:
    worker, router = await mesh.login("worker.code.w7"), await mesh.login("router.code.r1")
    assert await JetStream(worker).publish(CODE.events("w7"), b"batch") == 1

    await worker.client.listen(
        CODE.control("w7"),
        lambda _, reply, *__: worker.client.publish_nowait(reply.decode(), b"done"),
    )
    await worker.flush()
    answer = await router.request(CODE.control("w7"), b"drain", timeout_s=60)

    assert answer.data == b"done"


async def test_a_router_keeps_leases_and_snapshots_and_purges_but_makes_nothing(
    mesh: Mesh, eventually: Any
) -> None:
    worker, plane = await mesh.login("worker.code.w7"), await mesh.plane("router.code.r1")
    router = plane.connection
    for number in range(4):
        await JetStream(worker).publish(CODE.events("w7"), str(number).encode())
    data = os.urandom(3 * 1024**2)

    journal = await plane.journal("code")
    keys, objects = await plane.stores("code")
    revision = await keys.put("lease.snap.code", b"r1", expected=0, ttl_s=120)
    revision = await keys.put("lease.snap.code", b"r1", expected=revision, ttl_s=120)
    await objects.put("idx-1", data)
    listed = [info.name for info in await objects.list()]
    fetched = await objects.get("idx-1")
    await objects.delete("idx-1")
    await objects.delete_orphans(0)
    purged = await journal.purge(2)
    left = await journal.state()

    entry = await keys.get("lease.snap.code")
    assert entry is not None
    assert entry.revision == revision
    assert listed == ["idx-1"]
    assert fetched == data
    assert purged == 2
    assert left.messages == 2
    assert not router.statistics().errors
    for operation in (f"STREAM.DELETE.{STREAM}", "STREAM.CREATE.OTHER"):
        with pytest.raises(TransportError):
            await JetStream(router).call(operation, {}, dict[str, Any], timeout_s=0.3)
    await eventually(lambda: router.statistics().errors >= 2)


async def test_a_meta_router_hears_routers_and_says_nothing(mesh: Mesh, eventually: Any) -> None:
    router, meta = await mesh.login("router.code.r1"), await mesh.login("meta-router")
    heard: list[bytes] = []
    await meta.client.listen("kvmesh.rt.*.*", lambda _s, _r, data, _h: heard.append(data))
    await meta.flush()

    router.client.publish_nowait(CODE.routers("r1"), b"alive")
    await eventually(lambda: heard == [b"alive"])
    with contextlib.suppress(nats.errors.Error):
        meta.client.publish_nowait(CODE.routers("r1"), b"forged")

    await eventually(lambda: meta.statistics().errors)
    assert heard == [b"alive"]


async def test_a_follower_needs_no_more_than_a_routers_key_and_an_engine_a_workers(
    mesh: Mesh, eventually: Any
) -> None:
    admin = JetStream(await mesh.login("admin"))
    engine = Mocker(MockerOptions(port=0, kv_events_port=0, replay_port=0))
    await engine.start()

    def login(who: str) -> NatsLogin:
        return NatsLogin(nkey_seed=mesh.seed(who))

    as_worker = RegisterOptions(worker_id="w7", login=login("worker.code.w7"))
    as_router = FollowOptions(name="r1", login=login("router.code.r1"))
    booked: list[str] = []
    other = await mesh.login("router.code.r2")
    await other.client.listen(CODE.bookings("r1"), lambda subject, *_: booked.append(subject))
    async with (
        kvmesh.register_llm(engine.url, mesh.server.url, "code", as_worker),
        kvmesh.follow(mesh.server.url, "code", as_router) as listener,
    ):
        before = await admin.stream_info(STREAM)
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "mock", "prompt": [7] * 320, "max_tokens": 1}
            await client.post(f"{engine.url}/v1/completions", json=body)
        indexer = KvIndexer(listener)
        await eventually(lambda: indexer.find_matches([7] * 320) == {"w7": 20})
        booked.clear()
        with listener.book("w7", [7] * 320):
            await eventually(lambda: booked, what="routers hear the booking")
        assert (await admin.stream_info(STREAM)).config == before.config
    await engine.stop()
    log = (mesh.out.parent / "nats.log").read_text()
    assert "ermissions" not in log, log


class Process:
    """One `kvmesh` process whose log is read until a line shows it works."""

    def __init__(self, stack: contextlib.AsyncExitStack, folder: Path, *words: str) -> None:
        self.words = words
        self.log = folder / f"{words[0]}.log"
        self._stack = stack

    async def start(self) -> None:
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kvmesh", *self.words, "--log-format", "json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        async def stop() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), 60)

        self._stack.push_async_callback(stop)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def url(self) -> str:
        for line in self.text().splitlines():
            if ' serves"' in line:
                return line.split('"url": "')[1].split('"')[0]
        return ""


async def test_real_processes_work_with_the_rights_they_have(
    mesh: Mesh, eventually: Any, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = Mocker(
            MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
        )
        await engine.start()
        stack.push_async_callback(engine.stop)

        def nats(who: str) -> tuple[str, ...]:
            return ("--nats-url", mesh.server.url, "--nats-nkey-seed", str(mesh.seed(who)))

        worker = Process(
            *(stack, tmp_path, "worker", "--engine-url", engine.url, "--bucket", "code"),
            *("--worker-id", "w7", *nats("worker.code.w7")),
        )
        router = Process(
            *(stack, tmp_path, "router", "--bucket", "code", "--router-id", "r1"),
            *("--http-port", "0", "--stream-max-bytes", str(32 * 1024**2)),
            *nats("router.code.r1"),
        )
        meta = Process(stack, tmp_path, "meta-router", "--http-port", "0", *nats("meta-router"))
        for process in (worker, router, meta):
            await process.start()
        await eventually(lambda: router.url() and meta.url(), timeout_s=60, what="both serve")
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))

        async def until(url: str, check: Any) -> httpx.Response:
            async with asyncio.timeout(60):
                while not check(answer := await client.get(url)):  # noqa: ASYNC110  nothing tells over HTTP
                    await asyncio.sleep(0.05)
            return answer

        await until(f"{meta.url()}/ready", lambda answer: answer.status_code == 200)
        prompt = "A long shared beginning, again and again. " * 40
        body = {"model": "mock", "max_tokens": 2, "messages": [{"role": "user", "content": prompt}]}
        answer = await client.post(f"{meta.url()}/v1/chat/completions", json=body)

        assert answer.status_code == 200, answer.text
        assert answer.headers["x-kvmesh-worker"] == "w7"
        await until(
            f"{router.url()}/v1/status",
            lambda answer: answer.json()["mesh"]["blocks"].get("w7", 0) > 100,
        )
        # A forged reply subject makes the server store its own ack as the other worker's event.
        forged = await mesh.login("worker.code.w8")
        forged.client.publish_nowait(CODE.events("w8"), b"junk", CODE.events("w7"))
        last = await JetStream(await mesh.login("admin")).stream_info(STREAM)
        await until(
            f"{router.url()}/v1/status",
            lambda answer: answer.json()["mesh"]["applied_sequence"] >= last.state.last_seq,
        )
        again = await client.post(f"{meta.url()}/v1/chat/completions", json=body)
        assert int(again.headers["x-kvmesh-overlap-blocks"]) > 100
        for process in (worker, router, meta):
            assert "ermissions" not in process.text(), process.text()
