"""The journal on three servers: leaders killed and frozen, no acked message lost."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.durability import warn_of_one_copy
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.jetstream.objects import NatsObjects, ObjectOptions
from tests.integration.nats.cluster import NatsCluster
from tests.integration.nats.journal_load import (
    STREAM,
    Reader,
    Writer,
    connect,
    finish,
    follow,
    open_journal,
)

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

TTL_S = 2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def admin(cluster: NatsCluster, stack: contextlib.AsyncExitStack) -> JetStream:
    return JetStream(await connect(cluster.url, stack))


async def load(
    cluster: NatsCluster, stack: contextlib.AsyncExitStack, eventually: Any
) -> tuple[Writer, Reader]:
    connection = await connect(cluster.url, stack)
    assert warn_of_one_copy(connection, 1)
    assert not warn_of_one_copy(connection, 3)
    writer = Writer(await open_journal(cluster.url, stack, replicas=3))
    reader, _ = await follow(await open_journal(cluster.url, stack, replicas=3), stack)
    await eventually(lambda: len(writer.acked) > 500, timeout_s=60)
    return writer, reader


async def acks_go_on(writer: Writer, eventually: Any) -> None:
    before = len(writer.acked)
    await eventually(lambda: len(writer.acked) > before + 500, timeout_s=60, what="acks go on")


async def check(writer: Writer, reader: Reader, eventually: Any) -> None:
    await finish(writer, reader, eventually)
    assert not reader.gaps
    assert not reader.recreated


async def test_a_killed_leader_costs_a_pause_and_no_message(
    cluster: NatsCluster, admin: JetStream, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    writer, reader = await load(cluster, stack, eventually)

    for _ in range(2):
        leader = await cluster.leader(admin, STREAM)
        leader.kill()
        await acks_go_on(writer, eventually)
        await leader.start()
        await cluster.wait_whole(admin, STREAM)

    await check(writer, reader, eventually)
    assert max(writer.pauses) < 30


async def test_a_frozen_leader_costs_a_pause_and_no_message(
    cluster: NatsCluster, admin: JetStream, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    writer, reader = await load(cluster, stack, eventually)

    leader = await cluster.leader(admin, STREAM)
    leader.freeze()
    await acks_go_on(writer, eventually)
    leader.thaw()
    await cluster.wait_whole(admin, STREAM)
    await acks_go_on(writer, eventually)

    await check(writer, reader, eventually)


async def test_every_server_restarted_in_turn_costs_no_message(
    cluster: NatsCluster, admin: JetStream, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    writer, reader = await load(cluster, stack, eventually)

    for server in cluster.servers.values():
        await server.stop()
        await server.start()
        await cluster.wait_whole(admin, STREAM)
        await acks_go_on(writer, eventually)

    await check(writer, reader, eventually)


async def test_a_lease_has_one_holder_through_its_leaders_death(
    cluster: NatsCluster, admin: JetStream, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    stores = []
    for _ in range(3):
        options = KeyValueOptions(bucket="meta", replicas=3)
        stores.append(NatsKeyValue(await connect(cluster.url, stack), options))
        await stores[-1].open()
    takes: list[tuple[float, float, int]] = []
    stop = asyncio.Event()

    async def candidate(number: int, store: NatsKeyValue) -> None:
        held: int | None = None
        while not stop.is_set():
            asked_s = time.monotonic()
            try:
                held = await store.put("lease", b"%d" % number, expected=held, ttl_s=TTL_S)
                takes.append((time.monotonic(), asked_s, number))
            except TransportError:
                held = None
            await asyncio.sleep(0.1)

    candidates = [asyncio.create_task(candidate(n, store)) for n, store in enumerate(stores)]
    for _ in range(2):
        leader = await cluster.leader(admin, "KV_meta")
        leader.kill()
        since = len(takes)
        await eventually(lambda since=since: len(takes) > since + 10, timeout_s=60)
        await leader.start()
        await cluster.wait_whole(admin, "KV_meta")
    stop.set()
    await asyncio.gather(*candidates)

    takes.sort()
    for (_, asked_s, holder), (done_s, _, taker) in itertools.pairwise(takes):
        early_s = asked_s + TTL_S - done_s
        assert taker == holder or early_s < 0.05, f"{taker} took it {early_s:.2f} s early"


async def test_an_object_is_read_after_its_leaders_death(
    cluster: NatsCluster, admin: JetStream, stack: contextlib.AsyncExitStack
) -> None:
    options = ObjectOptions(bucket="snap", replicas=3)
    store = NatsObjects(await connect(cluster.url, stack), options)
    await store.open()
    data = bytes(range(256)) * 40_000
    await store.put("idx-1", data)

    (await cluster.leader(admin, "OBJ_snap")).kill()
    found = b""
    async with asyncio.timeout(60):
        while not found:
            try:
                found = await store.get("idx-1")
            except TransportError:
                await asyncio.sleep(0.1)

    assert found == data
