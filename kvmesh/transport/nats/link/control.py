"""The control plane: rare, typed commands with an answer, carried by FastStream.

One command is a tagged msgspec struct as msgpack on `<ns>.ctl.<bucket>.<worker>`, or `rctl` for a
router; its answer says whether it was done. FastStream costs 100 us a command and 12-25 times a
plain callback, so nothing frequent goes this way. It runs on the process's one connection: its own
would lack the repairs.

To load it takes 0.1 s of processor time and 13 MB, and most processes never get a command: the
first one loads it, in a thread, and waits meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from kvmesh.actors.kernel import Message
from kvmesh.errors import TransportError
from kvmesh.ports import ASK_TIMEOUT_S, Handler, T
from kvmesh.transport.commands import (
    CommandDesk,
    ControlStatistics,
    decode_reply,
    encode_command,
)
from kvmesh.transport.nats.link.connection import NatsConnection

Handle = Callable[[bytes], Awaitable[bytes]]
"""Takes the bytes of a command, returns those of its answer."""


class Broker(Protocol):
    """What is used of `SharedBroker`, whose module loads FastStream."""

    async def start(self) -> None:
        """Carry out what `consume` is given from now on."""
        ...

    async def stop(self) -> None:
        """End the subscriptions, after the commands under way."""
        ...

    async def consume(self, subject: str, message: Msg) -> None:
        """Carry out one command and answer it."""
        ...

    async def send(self, subject: str, command: bytes, timeout_s: float) -> bytes:
        """Return the answer to a command."""
        ...


class ControlPlane:
    """Answers commands on `subjects` with `handlers`, and sends commands to others.

    The keys of `handlers` are tagged structs (`actors.messages`); the app maps each to a function.
    """

    def __init__(
        self,
        connection: NatsConnection,
        subjects: Sequence[str],
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        self._connection = connection
        self._subjects = tuple(subjects)
        self._desk = CommandDesk(handlers)
        self._subscribed: dict[str, Subscription] = {}
        self._broker: Broker | None = None
        self._loading = asyncio.Lock()

    async def start(self) -> None:
        """Listen; commands sent from now on are answered. Raises `TransportError`."""
        client = self._connection.client
        try:
            for subject in self._subjects:
                command = partial(self._on_command, subject)
                self._subscribed[subject] = await client.subscribe(subject, cb=command)
            await self._connection.flush()
        except nats.errors.Error as error:
            raise TransportError(f"control plane: {error}") from error

    async def close(self) -> None:
        """Stop listening, after the commands under way; safe to call twice."""
        async with self._loading:
            if self._broker is not None:
                await self._broker.stop()
        while self._subscribed:
            await self._connection.client.end(self._subscribed.popitem()[1])
        await self._connection.flush()

    async def ask(
        self, subject: str, command: Message, result: type[T], *, timeout_s: float = ASK_TIMEOUT_S
    ) -> T:
        """Return the result of `command` at whoever listens on `subject`.

        Raises `TransportError` when nobody listens, the answer is late (the command may have been
        done), or the other side refused; `CodecError` for an answer of another type.
        """
        what = f"{type(command).__name__} to {subject}"
        broker = await self._loaded()
        try:
            reply = await broker.send(subject, encode_command(command), timeout_s)
        except nats.errors.NoRespondersError as error:
            raise TransportError(f"{what}: no responders, is it running?") from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise TransportError(f"{what}: no answer in {timeout_s:g} s") from error
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"{what}: {error}") from error
        return decode_reply(what, reply, result)

    def statistics(self) -> ControlStatistics:
        """Return counts for metrics."""
        return self._desk.statistics()

    async def _on_command(self, subject: str, message: Msg) -> None:
        broker = await self._loaded()
        await broker.consume(subject, message)

    async def _loaded(self) -> Broker:
        async with self._loading:
            if self._broker is None:
                make = await asyncio.to_thread(load_broker)
                broker = make(self._connection.client, self._subscribed, self._desk.handle)
                await broker.start()
                self._broker = broker
            return self._broker


def load_broker() -> Callable[[Client, Mapping[str, Subscription], Handle], Broker]:
    """Load FastStream and return what makes a broker that carries commands."""
    from kvmesh.transport.nats.link.broker import SharedBroker  # noqa: PLC0415  loads FastStream

    return SharedBroker
