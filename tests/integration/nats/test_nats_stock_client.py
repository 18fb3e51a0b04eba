"""What we store is read by the stock client, and the other way round."""

import io
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.js
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.jetstream.objects import NatsObjects, ObjectOptions
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions

pytestmark = pytest.mark.integration


@pytest.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(NatsOptions(url=nats_server.url))
    await connection.connect()
    yield connection
    await connection.close()


@pytest.fixture
async def stock(nats_server: NatsServer) -> AsyncIterator[nats.js.JetStreamContext]:
    client = await nats.connect(nats_server.url)
    yield client.jetstream()
    await client.close()


@pytest.fixture
def bucket() -> str:
    return f"b{uuid.uuid4().hex[:10]}"


async def test_the_stock_client_reads_our_objects(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    ours = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="memory"))
    await ours.open()
    data = os.urandom(1_300_000)
    await ours.put("idx-1", data)
    await ours.put("empty", b"")

    theirs = await stock.object_store(bucket)
    buffer = io.BytesIO()
    result = await theirs.get("idx-1", writeinto=buffer)

    assert buffer.getvalue() == data
    assert (result.info.size, result.info.chunks) == (len(data), 3)
    assert {info.name for info in await theirs.list()} == {"idx-1", "empty"}
    await ours.delete("empty")
    assert {info.name for info in await theirs.list()} == {"idx-1"}


async def test_we_read_the_stock_clients_objects(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    ours = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="memory"))
    await ours.open()
    theirs = await stock.object_store(bucket)
    data = os.urandom(700_000)
    await theirs.put("a", data)
    await theirs.put("gone", b"1")
    await theirs.delete("gone")

    assert await ours.get("a") == data
    assert [(info.name, info.size) for info in await ours.list()] == [("a", 700_000)]
    assert await ours.delete_orphans(0) == 0


async def test_an_interrupted_stock_put_is_an_orphan(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    ours = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="memory"))
    await ours.open()
    await ours.put("a", b"kept")
    for _ in range(3):
        await stock.publish(f"$O.{bucket}.C.dead", bytes(1000))

    assert await ours.delete_orphans(60) == 0
    assert await ours.delete_orphans(0) == 1
    info = await stock.stream_info(f"OBJ_{bucket}", subjects_filter="$O.>")
    assert not any("dead" in subject for subject in info.state.subjects or {})


async def test_the_stock_client_reads_our_keys(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    ours = NatsKeyValue(connection, KeyValueOptions(bucket=bucket, storage="memory"))
    await ours.open()
    revision = await ours.put("manifest.code", b"1", expected=None)
    await ours.put("lease.code", b"me", expected=None, ttl_s=5)

    theirs = await stock.key_value(bucket)
    entry = await theirs.get("manifest.code")

    assert (entry.value, entry.revision) == (b"1", revision)
    assert set(await theirs.keys()) == {"manifest.code", "lease.code"}
    await theirs.delete("manifest.code")
    assert await ours.get("manifest.code") is None


async def test_opening_again_changes_what_differs_and_keeps_the_data(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    first = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="memory"))
    await first.open()
    await first.put("a", b"1")

    bounded = ObjectOptions(bucket=bucket, storage="memory", max_bytes=64 * 1024**2)
    second = NatsObjects(connection, bounded)
    await second.open()
    await second.open()

    config: Any = (await stock.stream_info(f"OBJ_{bucket}")).config
    assert config.max_bytes == 64 * 1024**2
    assert await second.get("a") == b"1"


async def test_a_put_that_does_not_fit_leaves_nothing_behind(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    options = ObjectOptions(bucket=bucket, storage="memory", max_bytes=2 * 1024**2)
    ours = NatsObjects(connection, options)
    await ours.open()
    await ours.put("a", b"kept")

    with pytest.raises(Exception, match="maximum bytes exceeded"):
        await ours.put("b", os.urandom(5_000_000))

    assert [info.name for info in await ours.list()] == ["a"]
    assert (await stock.stream_info(f"OBJ_{bucket}")).state.messages == 2


async def test_a_setting_that_cannot_be_changed_stays(
    connection: NatsConnection, stock: nats.js.JetStreamContext, bucket: str
) -> None:
    first = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="memory"))
    await first.open()
    await first.put("a", b"1")

    second = NatsObjects(connection, ObjectOptions(bucket=bucket, storage="file"))
    await second.open()

    assert (await stock.stream_info(f"OBJ_{bucket}")).config.storage == "memory"
    assert await second.get("a") == b"1"
