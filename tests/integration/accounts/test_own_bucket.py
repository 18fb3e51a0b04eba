"""A stolen router key has the server write in its own bucket: what is heard there is not believed.

No permission of nats-server says where a consumer delivers. But what it delivers keeps the subject
under which it was stored, and what bears the right subject is an ack or an answer of the server.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, decode
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.core.blocks.events import decode_batch
from kvmesh.errors import CodecError
from kvmesh.ports import Record
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.layout import meta_bucket, session_bucket
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh
from tests.integration.support.pens import (
    Attack,
    Pen,
    Thief,
    ack,
    api_answer,
    message_read,
    pull,
    use,
)

pytestmark = pytest.mark.integration

CHAT = Subjects("kvmesh", "chat")
SESSIONS = session_bucket(CHAT)
FORGED, REAL = b"forged", b"real"
THIEF = Thief(
    label="router.chat.r0",
    names=(),
    home="",
    own="",
    heard_in="",
    stored=f"$KV.{SESSIONS}.w1",
    stream=f"KV_{SESSIONS}",
    read=f"KV_{meta_bucket('kvmesh')}",
)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(
        out=tmp_path / "accounts", worker=("chat/w1",), router=("chat/r0", "chat/r1")
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("chat",)) as mesh:
        yield mesh


class GatewayMessage:
    """A TailListener that keeps the records."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.gaps = 0

    def on_record(self, record: Record) -> None:
        self.records.append(record)

    def on_gap(self, first: int, last: int) -> None:
        del first, last
        self.gaps += 1

    def on_recreated(self, state: Any) -> None:
        """Not here."""

    def on_caught_up(self, sequence: int) -> None:
        """Nothing waits for it."""


async def steal(mesh: LockedMesh) -> Attack:
    """Return a thief with a message in a table whose key is the name of a worker."""
    router: NatsConnection = await mesh.login(THIEF.label)
    attack = Attack(THIEF, router)
    await attack.jetstream.publish(f"$KV.{SESSIONS}.w1", FORGED)
    return attack


async def test_a_heartbeat_that_a_consumer_delivers_is_ignored(
    mesh: LockedMesh, eventually: Any
) -> None:
    """By a pull: a push consumer delivers only where somebody subscribed without a wildcard."""
    plane, worker = await mesh.plane("router.chat.r1"), await mesh.login("worker.chat.w1")
    received: list[tuple[str, bytes]] = []
    bus = NatsBus(plane.connection)
    await bus.subscribe(CHAT.heartbeats(), lambda *message: received.append(message))

    await use(pull, await steal(mesh), CHAT.heartbeats("w1"))

    await eventually(lambda: bus.statistics().strangers, what="the forged one is counted")
    worker.client.publish_nowait(CHAT.heartbeats("w1"), REAL)
    await eventually(lambda: received, what="the real one")
    assert received == [(CHAT.heartbeats("w1"), REAL)]


async def test_a_record_that_a_pull_stores_as_an_event_is_passed_over(
    mesh: LockedMesh, eventually: Any
) -> None:
    plane, worker = await mesh.plane("router.chat.r1"), await mesh.login("worker.chat.w1")
    journal = await plane.journal("chat")
    received = GatewayMessage()
    tail = await journal.tail(0, "", received)

    await use(pull, await steal(mesh), CHAT.events("w1"))

    await eventually(lambda: tail.statistics().strangers == 1, what="the forged one is counted")
    sequence = await JetStream(worker).publish(CHAT.events("w1"), REAL)
    await eventually(lambda: received.records, what="the real one")
    await tail.close()
    reported = [(one.sequence, one.subject, one.data) for one in received.records]
    assert reported == [(sequence, CHAT.events("w1"), REAL)]
    assert sequence == 2
    assert not received.gaps
    assert tail.statistics().position == sequence


@pytest.mark.parametrize("pen", [ack, api_answer, message_read])
async def test_what_the_server_says_under_an_events_subject_is_no_event(
    mesh: LockedMesh, eventually: Any, pen: Pen
) -> None:
    plane = await mesh.plane("router.chat.r1")
    journal = await plane.journal("chat")
    received = GatewayMessage()
    tail = await journal.tail(0, "", received)

    await use(pen, await steal(mesh), CHAT.events("w1"))

    await eventually(lambda: received.records, what="the server's words")
    await tail.close()
    [record] = received.records
    assert record.subject == CHAT.events("w1")
    with pytest.raises(CodecError):
        decode_batch(record.data)
    with pytest.raises(CodecError):
        decode(record.data, WorkerHeartbeat)
