"""Real work with the least rights: what each key must be able to do on a server with accounts."""

import asyncio
import contextlib
import os
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
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from tests.integration.picker.asking import Gateway, chat, serve
from tests.integration.support.live_router import free_port, mockers
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh
from tests.integration.support.mesh_process import Process

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


def seed(mesh: LockedMesh, label: str) -> Path:
    return mesh.options.out / "seeds" / f"{label}.nk"


async def test_meta_routers_share_homes_with_the_rights_they_have(
    mesh: LockedMesh, eventually: Any
) -> None:
    tables = [await (await mesh.plane("meta-router")).homes(3600, 131_072) for _ in range(2)]
    reported = Told()
    await tables[1].follow(reported)

    tables[0].put("00000000000000ff", b"code")

    await eventually(lambda: reported.values, what="the home")
    assert reported.values == {"00000000000000ff": b"code"}


class Told:
    """A TableListener that keeps what it is told."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def on_value(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def on_caught_up(self) -> None:
        """Nothing waits for it."""


async def test_a_worker_gets_acks_and_its_own_commands_and_answers_them(mesh: LockedMesh) -> None:
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
    mesh: LockedMesh, eventually: Any
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


async def test_a_meta_router_hears_routers_and_says_nothing(
    mesh: LockedMesh, eventually: Any
) -> None:
    router, meta = await mesh.login("router.code.r1"), await mesh.login("meta-router")
    received: list[bytes] = []
    await meta.client.listen("kvmesh.rt.*.*", lambda _s, _r, data, _h: received.append(data))
    await meta.flush()

    router.client.publish_nowait(CODE.routers("r1"), b"alive")
    await eventually(lambda: received == [b"alive"])
    with contextlib.suppress(nats.errors.Error):
        meta.client.publish_nowait(CODE.routers("r1"), b"forged")

    await eventually(lambda: meta.statistics().errors)
    assert received == [b"alive"]


async def test_a_follower_needs_no_more_than_a_routers_key_and_an_engine_a_workers(
    mesh: LockedMesh, eventually: Any
) -> None:
    admin = JetStream(await mesh.login("admin.code", "admin"))

    def login(who: str) -> NatsLogin:
        return NatsLogin(creds=seed(mesh, who))

    as_worker = RegisterOptions(worker_id="w7", login=login("worker.code.w7"))
    as_router = FollowOptions(name="r1", login=login("router.code.r1"))
    booked: list[str] = []
    other = await mesh.login("router.code.r2")
    await other.client.listen(CODE.bookings("r1"), lambda subject, *_: booked.append(subject))
    async with (
        mockers(timing_profile="dynamo") as (engine,),
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
    log = mesh.log.read_text()
    assert "ermissions" not in log, log


async def test_real_processes_work_with_the_rights_they_have(
    mesh: LockedMesh, eventually: Any, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        (engine,) = await stack.enter_async_context(mockers())

        def nats(who: str) -> tuple[str, ...]:
            return ("--nats-url", mesh.server.url, "--nats-creds", str(seed(mesh, who)))

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
        # The ack of another worker's event goes to that worker's own account, not to this one's.
        forger, admin = await mesh.login("worker.code.w8"), await mesh.login("admin.code", "admin")
        before = await JetStream(admin).stream_info(STREAM)
        forger.client.publish_nowait(CODE.events("w8"), b"junk", CODE.events("w7"))
        await until(
            f"{router.url()}/v1/status",
            lambda answer: answer.json()["mesh"]["applied_sequence"] > before.state.last_seq,
        )
        found = await JetStream(admin).last_message(STREAM, CODE.events("w7"))
        assert found is not None
        assert found.seq <= before.state.last_seq
        again = await client.post(f"{meta.url()}/v1/chat/completions", json=body)
        assert int(again.headers["x-kvmesh-overlap-blocks"]) > 100
        taken = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvmesh", "snapshot", "take", "code", "--router-id", "r1"),
            *nats("router.code.r1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await taken.communicate()
        assert taken.returncode == 0, said.decode()
        assert b" blocks" in said
        for process in (worker, router, meta):
            assert "ermissions" not in process.text(), process.text()


async def test_a_picker_works_with_a_routers_key(mesh: LockedMesh, tmp_path: Path) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        (engine,) = await stack.enter_async_context(mockers())

        def nats(who: str) -> tuple[str, ...]:
            return ("--nats-url", mesh.server.url, "--nats-creds", str(seed(mesh, who)))

        worker = Process(
            *(stack, tmp_path, "worker", "--engine-url", engine.url, "--bucket", "code"),
            *("--worker-id", "w7", *nats("worker.code.w7")),
        )
        picker = Process(
            *(stack, tmp_path, "picker", "--bucket", "code", "--router-id", "r1"),
            *("--http-port", "0", "--grpc-port", str(port), "--notice-s", "0"),
            *("--stream-max-bytes", str(32 * 1024**2), *nats("router.code.r1")),
        )
        await worker.start()
        await picker.start()
        gateway = Gateway(f"127.0.0.1:{port}")
        stack.push_async_callback(gateway.close)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        text = chat("A long shared beginning, again and again. " * 40)
        async with asyncio.timeout(60):
            while not await gateway.is_serving():  # noqa: ASYNC110  nothing tells without asking
                await asyncio.sleep(0.05)
            overlap = 0
            while overlap < 100:
                _, reported = await serve(gateway, client, text, {})
                overlap = int(reported["x-kvmesh-overlap-blocks"])

        assert "picker serves" in picker.text()
        assert "ermissions" not in picker.text(), picker.text()
