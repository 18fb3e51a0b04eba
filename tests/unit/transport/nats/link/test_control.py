import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from faststream.nats import TestNatsBroker

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import Drain, Resync, Status
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import CodecError, NoWorkerError, TransportError
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.link.control import ControlPlane

SUBJECT = "kvmesh.ctl.code.w1"
RESYNC = Resync(WorkerId("w1"), 7, 3, "r1")


class Unhandled(Message, frozen=True, tag="unhandled"):
    pass


class Target:
    """The app behind the control plane: writes down what it was told."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    async def drain(self, command: Drain) -> None:
        self.told.append(command)

    async def resync(self, command: Resync) -> dict[str, int]:
        self.told.append(command)
        return {"from": command.next_seq}

    async def status(self, command: Status) -> None:
        self.told.append(command)
        raise NoWorkerError("nobody here")


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
async def control(target: Target) -> AsyncIterator[ControlPlane]:
    plane = ControlPlane(
        NatsConnection(NatsOptions()),
        [SUBJECT, "kvmesh.ctl.code.all"],
        {Drain: target.drain, Resync: target.resync, Status: target.status},
    )
    async with TestNatsBroker(plane.broker):
        yield plane


async def test_a_command_reaches_its_handler_and_its_result_the_asker(
    control: ControlPlane, target: Target
) -> None:
    result = await control.ask(SUBJECT, RESYNC, dict[str, int])

    assert result == {"from": 3}
    assert target.told == [RESYNC]
    assert control.statistics().handled == 1


async def test_every_subject_is_answered(control: ControlPlane, target: Target) -> None:
    await control.ask("kvmesh.ctl.code.all", Drain(draining=False), type(None))

    assert target.told == [Drain(draining=False)]


async def test_a_refusal_tells_the_asker_why(control: ControlPlane) -> None:
    with pytest.raises(TransportError, match=r"Status to .* refused: nobody here"):
        await control.ask(SUBJECT, Status(), dict[str, Any])

    assert control.statistics().refused == 1


async def test_an_unknown_command_is_refused(control: ControlPlane) -> None:
    with pytest.raises(TransportError, match="refused"):
        await control.ask(SUBJECT, Unhandled(), type(None))


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\xff" * 100, b'{"seq": 3}'])
async def test_garbage_is_refused(control: ControlPlane, target: Target, garbage: bytes) -> None:
    reply = await control.broker.request(garbage, SUBJECT)

    assert b"command of" in reply.body
    assert target.told == []


async def test_a_handlers_bug_is_reported_and_answered(
    control: ControlPlane, target: Target
) -> None:
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    target.told = None  # type: ignore[assignment]  # the bug

    with pytest.raises(TransportError, match="AttributeError"):
        await control.ask(SUBJECT, RESYNC, dict[str, int])

    assert isinstance(contexts[0]["exception"], AttributeError)


async def test_an_answer_of_another_type_is_a_codec_error(control: ControlPlane) -> None:
    with pytest.raises(CodecError, match="unreadable answer"):
        await control.ask(SUBJECT, RESYNC, list[str])


async def test_a_command_published_without_asking_is_carried_out(
    control: ControlPlane, target: Target
) -> None:
    await control.broker.publish(msgspec.msgpack.encode(RESYNC), SUBJECT)

    assert target.told == [RESYNC]
