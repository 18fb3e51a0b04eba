"""What a worker's wildcard key may put into the stream besides records of its workers."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.integration.nats.journal_load import SUBJECT, follow, open_journal
from tests.nats_container import Served

pytestmark = pytest.mark.integration


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
    fresh_server: Served, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(fresh_server.url, stack)
    reader, tail = await follow(journal, stack)

    await publish_raw(fresh_server.url, b"kvmesh.ev.code.\xff\xfe", b"odd")
    journal.append(SUBJECT, b"good", lambda _: None)

    await eventually(lambda: reader.seen == {1: b"odd", 2: b"good"})
    assert tail.statistics().consumers == 1
    assert reader.errors == []
