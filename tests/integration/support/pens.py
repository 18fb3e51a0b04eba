"""The server's pens: each way to have nats-server write to a subject that a thief chooses.

A new pen is one function and one row of `PENS`. It is used once for each foreign subject, where
nobody may hear it, and once for a subject of the thief's own, where it must be heard: else the
row would prove nothing.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats.errors

from kvmesh.errors import TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.link.connection import NatsConnection

EVIL = "EVIL"
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Thief:
    """A process whose key was stolen, and what its rights let it use; "" where it has none.

    `own` is a subject of its own that is heard in the account `heard_in`. `stored` is one it may
    write that a stream keeps, `written` one that nobody answers, `asked` one that a process does.
    `stream` is a stream it may follow, with a message in it, `read` one whose messages it may get.
    """

    label: str
    names: tuple[str, ...]
    home: str
    own: str
    heard_in: str
    stored: str = ""
    stream: str = ""
    read: str = ""
    written: str = ""
    asked: str = ""


class Attack:
    """A thief that is logged in."""

    def __init__(self, thief: Thief, connection: NatsConnection) -> None:
        self.thief = thief
        self.connection = connection
        self.jetstream = JetStream(connection, timeout_s=2.0)

    def say(self, subject: str, data: bytes, reply: str) -> None:
        self.connection.client.publish_nowait(subject, data, reply)

    async def call(self, operation: str, body: object) -> None:
        """Ask JetStream; it may refuse."""
        with contextlib.suppress(TransportError):
            await self.jetstream.call(operation, body, dict[str, Any])

    async def consumer(self, **config: object) -> str:
        name = f"evil-{next(_numbers)}"
        config |= {"name": name, "ack_policy": "none", "deliver_policy": "all"}
        body = {"stream_name": self.thief.stream, "config": config, "action": "create"}
        await self.call(f"CONSUMER.CREATE.{self.thief.stream}.{name}", body)
        return name

    async def stream(self, **config: object) -> None:
        name = f"{EVIL}{next(_numbers)}"
        await self.call(f"STREAM.CREATE.{name}", {"name": name, "storage": "memory"} | config)


async def publish(attack: Attack, target: str) -> None:
    """No pen: what the thief's own permissions let it write."""
    attack.say(target, b"{}", "")


async def ack(attack: Attack, target: str) -> None:
    """The acknowledgement of a message that is stored."""
    attack.say(attack.thief.stored, b"x", target)


async def api_answer(attack: Attack, target: str) -> None:
    """The answer of JetStream's API."""
    attack.say(f"$JS.API.STREAM.INFO.{attack.thief.stream}", b"", target)


async def consumer_answer(attack: Attack, target: str) -> None:
    """The answer to the making of a consumer."""
    name = f"evil-{next(_numbers)}"
    subject = f"$JS.API.CONSUMER.CREATE.{attack.thief.stream}.{name}"
    attack.say(subject, b"{}", target)


async def message_read(attack: Attack, target: str) -> None:
    """One message of a stream, as an answer of the API."""
    attack.say(f"$JS.API.STREAM.MSG.GET.{attack.thief.read}", b'{"seq":1}', target)


async def direct_read(attack: Attack, target: str) -> None:
    """One message of a stream, raw: its payload is what somebody stored."""
    attack.say(f"$JS.API.DIRECT.GET.{attack.thief.stream}", b'{"seq":1}', target)


async def push(attack: Attack, target: str) -> None:
    """A push consumer: raw messages of a stream, to any subject."""
    await attack.consumer(deliver_subject=target)


async def pull(attack: Attack, target: str) -> None:
    """A pull consumer: raw messages of a stream, to the reply subject of whoever pulls."""
    name = await attack.consumer()
    attack.say(f"$JS.API.CONSUMER.MSG.NEXT.{attack.thief.stream}.{name}", b"1", target)


async def republish(attack: Attack, target: str) -> None:
    """A stream that fills from another, and says again what it stores."""
    await attack.stream(
        sources=[{"name": attack.thief.stream}], republish={"src": ">", "dest": f"{target}.>"}
    )


async def source_api(attack: Attack, target: str) -> None:
    """A stream whose source is said to lie behind another API: the server asks there."""
    await attack.stream(sources=[{"name": "X", "external": {"api": target, "deliver": "d"}}])


async def mirror_api(attack: Attack, target: str) -> None:
    """The same of a mirror."""
    await attack.stream(mirror={"name": "X", "external": {"api": target, "deliver": "d"}})


async def trace(attack: Attack, target: str) -> None:
    """The trace that the server writes of a message that asks for one."""
    client = attack.connection.client
    with contextlib.suppress(nats.errors.Error):
        headers = {"Nats-Trace-Dest": target}
        await client.publish(attack.thief.written, b"", headers=headers)


async def answer(attack: Attack, target: str) -> None:
    """The answer of an honest process: the chain of two service imports and back."""
    attack.say(attack.thief.asked, b"x", target)


Pen = Callable[[Attack, str], Awaitable[None]]
WRITERS = ("worker", "pool", "router", "follower", "meta-router")
READERS = ("router", "follower", "meta-router", "admin", "meta-admin")
ROUTERS = ("router", "follower")
ADMINS = ("admin", "meta-admin")
PENS: dict[Pen, tuple[str, ...]] = {
    publish: (*WRITERS, "site"),
    ack: WRITERS,
    api_answer: READERS,
    consumer_answer: READERS,
    message_read: (*ROUTERS, *ADMINS),
    direct_read: ("admin",),
    push: READERS,
    pull: READERS,
    republish: ADMINS,
    source_api: ADMINS,
    mirror_api: ADMINS,
    trace: (*WRITERS, "site"),
    answer: ROUTERS,
}
"""Which stolen key has each pen in its hands."""


async def use(pen: Pen, attack: Attack, target: str) -> None:
    """Use a pen, and return when the server has read it."""
    await pen(attack, target)
    async with asyncio.timeout(10):
        await attack.connection.flush()
