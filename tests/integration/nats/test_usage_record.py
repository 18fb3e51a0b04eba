"""The record of usage on a real NATS: replicas that agree, one that is killed, a biller."""

import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import nats
import nats.errors
import pytest

from examples import usage_biller
from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.usage_store import UsageStore
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.admission.usage import Consumer, UsageSums
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh_lab.mocker.command import Mocker
from tests.chaos.process import MeshProcess
from tests.integration.support.live_router import mockers
from tests.integration.support.locked_mesh import locked_mesh
from tests.integration.support.small_mesh import answer_with, router_processes

pytestmark = pytest.mark.integration

FLUSH_S: Final = 1.0
BODY: Final[dict[str, Any]] = {"model": "mock", "prompt": "a" * 320, "max_tokens": 4}


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    async with mockers() as (engine,):
        yield engine


@pytest.fixture
async def replicas(
    nats_server: NatsServer, namespace: str, engine: Mocker, tmp_path: Path
) -> AsyncIterator[list[MeshProcess]]:
    flags = [f"--worker=w0={engine.url}", "--no-kv-events", "--nats-url", nats_server.url]
    flags += ["--namespace", namespace, "--parity-sample", "0"]
    with router_processes(2, tmp_path, *flags) as processes:
        yield processes


async def send(client: httpx.AsyncClient, replica: MeshProcess, tenant: str) -> int:
    """Return how many tokens of an answer the client has."""
    headers = {"x-kvmesh-tenant": tenant}
    answer = await client.post(f"{replica.url}/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    used = answer.json()["usage"]
    assert used["prompt_tokens"] == 320
    return int(used["completion_tokens"])


async def usage(client: httpx.AsyncClient, replica: MeshProcess) -> dict[str, Any]:
    page: dict[str, Any] = (await client.get(f"{replica.url}/v1/usage?since=24h")).json()
    return page


async def knows(client: httpx.AsyncClient, replica: MeshProcess, requests: int) -> dict[str, Any]:
    """Return the page once it counts so many requests and misses nothing."""
    async with asyncio.timeout(20):
        while True:
            page = await usage(client, replica)
            if page["total"]["requests"] >= requests and not page["missing"]:
                return page
            await asyncio.sleep(0.1)


def copy_of_example(namespace: str, path: Path) -> Path:
    script = Path(usage_biller.__file__).read_text()
    path.write_text(script.replace('"kvmesh", "biller"', f'"{namespace}", "biller"'))
    return path


@contextlib.asynccontextmanager
async def biller(
    server: NatsServer, namespace: str, path: Path, *more: str
) -> AsyncIterator[sqlite3.Connection]:
    """Run the example of the documentation as a process; yield what it writes."""
    own = copy_of_example(namespace, path.with_suffix(".py"))
    words = (sys.executable, str(own), server.url, "default", str(path), *more)
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(20):
            while not path.exists():  # noqa: ASYNC110, ASYNC240  another process's file
                await asyncio.sleep(0.05)
        yield sqlite3.connect(path)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def billed(database: sqlite3.Connection, what: str = "requests") -> int:
    with contextlib.suppress(sqlite3.OperationalError):
        found = database.execute(f"SELECT COALESCE(SUM({what}), 0) FROM usage")  # noqa: S608  ours
        return int(found.fetchone()[0])
    return 0


async def until_billed(database: sqlite3.Connection, requests: int) -> None:
    async with asyncio.timeout(20):
        while billed(database) < requests:  # noqa: ASYNC110  another process's table
            await asyncio.sleep(0.1)


async def test_replicas_agree_and_a_start_knows_what_was_before(
    replicas: list[MeshProcess],
) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        for replica in replicas:
            await answer_with(client, replica, "/ready", 200)
        for number in range(12):
            await send(client, replicas[number % 3 == 0], f"t{number % 2}")
        pages = [await knows(client, one, 12) for one in replicas]
        replicas[0].kill()
        replicas[0].start()
        await answer_with(client, replicas[0], "/ready", 200)
        again = await knows(client, replicas[0], 12)

    rows = [sorted((one["name"], one["requests"]) for one in page["rows"]) for page in pages]
    assert rows == [[("t0", 6), ("t1", 6)]] * 2
    assert again["total"] == pages[1]["total"]
    assert again["total"]["prompt_tokens"] == 12 * 320


async def test_a_biller_has_what_engines_counted_but_for_the_last_moments_of_a_killed_router(
    replicas: list[MeshProcess],
    engine: Mocker,
    nats_server: NatsServer,
    namespace: str,
    tmp_path: Path,
) -> None:
    late: list[float] = []
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=30) as client:
        for replica in replicas:
            await answer_with(client, replica, "/ready", 200)
        async with biller(nats_server, namespace, tmp_path / "bill.sqlite") as database:
            await send(client, replicas[1], "t")
            await until_billed(database, 1)
            began = loop.time()
            while loop.time() < began + 3.0:
                await send(client, replicas[0], "t")
                late.append(loop.time())
                await asyncio.sleep(0.02)
            replicas[0].kill()
            killed = loop.time()
            for _ in range(20):
                await send(client, replicas[1], "t")
        # It was killed, too: another goes on where it was.
        promised = sum(one < killed - 2 * FLUSH_S for one in late) + 21
        async with biller(nats_server, namespace, tmp_path / "bill.sqlite") as database:
            await until_billed(database, promised)
            await knows(client, replicas[1], promised)
            page = await usage(client, replicas[1])
            counted = billed(database), billed(database, "prompt_tokens + output_tokens")
        metrics = (await client.get(f"{engine.url}/metrics")).text
    sent = len(late) + 21
    assert promised <= counted[0] <= sent
    assert page["total"]["requests"] == counted[0]
    names = ("vllm:prompt_tokens_total{", "vllm:generation_tokens_total{")
    lines = [one for one in metrics.splitlines() if one.startswith(names)]
    engines = sum(float(one.rpartition(" ")[2]) for one in lines)
    lost = (sent - counted[0]) * 324
    assert counted[1] == pytest.approx(engines - lost, rel=0.01)


async def test_a_biller_with_an_account_reads_the_record_and_nothing_else(tmp_path: Path) -> None:
    options = AccountsOptions(
        out=tmp_path / "accounts", router=("default/r0",), biller=("default/biller",)
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("default",)) as mesh:
        book = UsageBook("default", "r0", 1)
        subject = Subjects("kvmesh", "default").usage("r0")
        plane = await mesh.plane("router.default.r0")
        store = UsageStore(book, plane, "default", subject)
        store.start()
        book.count(Consumer("t"), UsageSums(3))
        book.flush(time.time())
        seed = str(options.out / "seeds" / "biller.default.biller.nk")
        async with biller(mesh.server, "kvmesh", tmp_path / "bill.sqlite", seed) as database:
            await until_billed(database, 3)
        await store.stop()
        inbox = b"_INBOX.biller.default.biller"
        spy = await nats.connect(mesh.server.url, nkeys_seed=seed, inbox_prefix=inbox)
        denied = spy.jetstream(timeout=1)
        with pytest.raises(nats.errors.TimeoutError):
            await denied.stream_info("KVMESH_EVENTS_default")
        with pytest.raises(nats.errors.TimeoutError):
            await denied.purge_stream("kvmesh_usage_default")
        kept = (await spy.jetstream().stream_info("kvmesh_usage_default")).state.messages
        await spy.close()

    assert billed(database) == 3
    assert kept == 1
    assert book.statistics().unsent == 0
