import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from faststream.nats import TestNatsBroker
from nats.aio.subscription import Subscription

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import Drain, Resync
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.commands import CommandDesk, decode_reply, encode_command
from kvmesh.transport.nats.link.broker import SharedBroker
from kvmesh.transport.nats.link.client import NatsClient
from kvmesh.transport.nats.trust.signing import Signing

SUBJECT = "kvmesh.ctl.code.w1"
RESYNC = Resync(WorkerId("w1"), 7, 3, "r1")


class Target:
    """The app behind the control plane: writes down what it was told."""

    def __init__(self) -> None:
        self.reported: list[Message] = []

    async def drain(self, command: Drain) -> None:
        self.reported.append(command)

    async def resync(self, command: Resync) -> dict[str, int]:
        self.reported.append(command)
        return {"from": command.next_seq}


@pytest.fixture
def target() -> Target:
    return Target()


class Asker:
    """Asks by a broker that FastStream's own test broker stands in for."""

    def __init__(self, broker: SharedBroker, desk: CommandDesk) -> None:
        self.broker = broker
        self.desk = desk

    async def ask(self, subject: str, command: Message, result: Any) -> Any:
        reply = await self.broker.send(subject, encode_command(command), 5.0)
        return decode_reply(f"{type(command).__name__} to {subject}", reply, result)


@pytest.fixture
async def control(target: Target) -> AsyncIterator[Asker]:
    desk = CommandDesk({Drain: target.drain, Resync: target.resync})
    client = NatsClient(Signing(get_logger()))
    received = {one: Subscription(client) for one in (SUBJECT, "kvmesh.ctl.code.all")}
    broker = SharedBroker(client, received, desk.handle)
    async with TestNatsBroker(broker):
        yield Asker(broker, desk)


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\xff" * 100, b'{"seq": 3}'])
async def test_garbage_is_refused(control: Asker, target: Target, garbage: bytes) -> None:
    reply = await control.broker.send(SUBJECT, garbage, 5.0)

    assert b"command of" in reply
    assert target.reported == []


async def test_a_handlers_bug_is_reported_and_answered(control: Asker, target: Target) -> None:
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    target.reported = None  # type: ignore[assignment]  # the bug

    with pytest.raises(TransportError, match="AttributeError"):
        await control.ask(SUBJECT, RESYNC, dict[str, int])

    assert isinstance(contexts[0]["exception"], AttributeError)


async def test_a_command_published_without_asking_is_carried_out(
    control: Asker, target: Target
) -> None:
    await control.broker.publish(msgspec.msgpack.encode(RESYNC), SUBJECT)

    assert target.reported == [RESYNC]
    assert control.desk.statistics().handled == 1
