"""The control plane: rare, typed commands with an answer, carried by FastStream.

One command is a tagged msgspec struct as msgpack on `<ns>.ctl.<bucket>.<worker>`, or `rctl` for a
router; its answer says whether it was done. FastStream costs 100 us a command and 12-25 times a
plain callback, so nothing frequent goes this way. It runs on the process's one connection: its own
would lack the repairs.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType

import nats.errors
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client

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

GRACEFUL_S = 5.0


class SharedBroker(NatsBroker):
    """FastStream's broker on a connection that is somebody else's to open and close."""

    def __init__(self, connection: NatsConnection) -> None:
        super().__init__(apply_types=False, logger=None, graceful_timeout=GRACEFUL_S)
        self._shared = connection

    async def _connect(self) -> Client:
        self.config.connect(self._shared.client)
        return self._shared.client

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """End the subscriptions, waiting up to 5 s for the commands under way."""
        # FastStream would drain and close what it believes to be its own connection.
        self._connection = None
        await super().stop(exc_type, exc_val, exc_tb)


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
        self.broker = SharedBroker(connection)
        self._connection = connection
        self._desk = CommandDesk(handlers)
        for subject in subjects:
            # FastStream swallows what a decoder raises, so the asker would wait for nothing.
            self.broker.subscriber(subject, decoder=_body)(self._desk.handle)

    async def start(self) -> None:
        """Listen; commands sent from now on are answered. Raises `TransportError`."""
        try:
            await self.broker.start()
            await self._connection.flush()
        except nats.errors.Error as error:
            raise TransportError(f"control plane: {error}") from error

    async def close(self) -> None:
        """Stop listening, after the commands under way; safe to call twice."""
        await self.broker.stop()
        await self._connection.flush()

    async def ask(
        self, subject: str, command: Message, result: type[T], *, timeout_s: float = ASK_TIMEOUT_S
    ) -> T:
        """Return the result of `command` at whoever listens on `subject`.

        Raises `TransportError` when nobody listens, the answer is late (the command may have been
        done), or the other side refused; `CodecError` for an answer of another type.
        """
        what = f"{type(command).__name__} to {subject}"
        try:
            reply = await self.broker.request(encode_command(command), subject, timeout=timeout_s)
        except nats.errors.NoRespondersError as error:
            raise TransportError(f"{what}: nobody listens, is it running?") from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise TransportError(f"{what}: no answer in {timeout_s:g} s") from error
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"{what}: {error}") from error
        return decode_reply(what, reply.body, result)

    def statistics(self) -> ControlStatistics:
        """Return counts for metrics."""
        return self._desk.statistics()


async def _body(message: NatsMessage) -> bytes:
    return message.body
