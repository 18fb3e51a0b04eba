"""What a stolen key puts into a stream besides records, into objects besides snapshots."""

import asyncio
import base64
import contextlib
from typing import Any

import msgspec
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.objects import NatsObjects, ObjectOptions
from tests.integration.nats.journal_load import SUBJECT, connect, follow, open_journal

pytestmark = pytest.mark.integration

GOOD = b"kept" * 1000


async def forge(stream: JetStream, name: str, **said: Any) -> None:
    """Write a description of an object `name` by hand."""
    subject = f"$O.hostile.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
    meta = {"name": name, "nuid": "n", "size": 1, "chunks": 1, "digest": "SHA-256=", **said}
    await stream.publish(subject, msgspec.json.encode(meta), headers={"Nats-Rollup": "sub"})


async def test_descriptions_that_cannot_be_wipe_nothing_and_stop_nobody(
    own_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(own_server.url, stack)
    store = NatsObjects(connection, ObjectOptions(bucket="hostile"))
    await store.open()
    await store.put("good", GOOD)
    stream = JetStream(connection)
    for name, said in (
        ("all", {"nuid": ">"}),
        ("each", {"nuid": "*"}),
        ("many", {"chunks": 10**25}),
        ("negative", {"size": -1}),
        ("long", {"nuid": "n" * 1000}),
        ("odd", {"digest": "SHA-256=\u00e9"}),
    ):
        await forge(stream, name, **said)
        with contextlib.suppress(TransportError):
            await store.delete(name)

    listed = {one.name for one in await store.list()}

    assert "good" in listed
    assert await store.get("good") == GOOD


async def test_an_object_larger_than_it_says_is_given_up_early(
    own_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(own_server.url, stack)
    store = NatsObjects(connection, ObjectOptions(bucket="hostile"))
    await store.open()
    stream = JetStream(connection)
    for _ in range(8):
        await stream.publish("$O.hostile.C.n", bytes(100_000))
    await forge(stream, "large", size=10, chunks=10**15)

    with pytest.raises(TransportError, match="more than 10 bytes"):
        await store.get("large")


async def publish_raw(url: str, subject: bytes, data: bytes) -> None:
    """Publish as no client library would: any bytes make a subject."""
    host, _, port = url.rpartition("//")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\n')
    writer.write(b"PUB %b %d\r\n%b\r\nPING\r\n" % (subject, len(data), data))
    await writer.drain()
    assert b"PONG" in await reader.readline()
    writer.close()


async def test_a_subject_that_is_no_text_does_not_stop_who_reads_the_stream(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    reader, tail = await follow(journal, stack)

    await publish_raw(own_server.url, b"kvmesh.ev.code.\xff\xfe", b"odd")
    journal.append(SUBJECT, b"good", lambda _: None)

    await eventually(lambda: reader.seen == {1: b"odd", 2: b"good"})
    assert tail.statistics().consumers == 1
    assert reader.errors == []
