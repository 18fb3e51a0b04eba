"""The control plane: rare, typed commands with an answer, carried by FastStream.

One command is a tagged msgspec struct as msgpack on `<ns>.ctl.<bucket>.<worker>`, or `rctl` for a
router; its answer says whether it was done. FastStream costs 100 us a command and 12-25 times a
plain callback, so nothing frequent goes this way. It runs on the process's one connection: its own
would lack the repairs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import nats.errors
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client

from kvmesh.actors.kernel import Message
from kvmesh.errors import CodecError, KvMeshError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.nats.link.connection import NatsConnection

GRACEFUL_S = 5.0
ASK_TIMEOUT_S = 2.0

Handler = Callable[[Any], Awaitable[object]]
"""Takes the command of the type it is mapped from, returns what msgpack can encode, or None.

Commands to one subject run one after another, in order: a long job answers first and runs on.
"""

T = TypeVar("T")


class CommandReply(msgspec.Struct, frozen=True):
    """What every command is answered with: `error` is "" when it was done."""

    error: str = ""
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class ControlStatistics(msgspec.Struct, frozen=True):
    """Counts since the process started. `refused` were garbage, unknown, or failed."""

    handled: int
    refused: int


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
        self._handlers = dict(handlers)
        self._encoder = msgspec.msgpack.Encoder()
        kinds: Any = None
        for kind in handlers:
            kinds = kind if kinds is None else kinds | kind
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kinds)
        self._handled = self._refused = 0
        self._log = get_logger()
        for subject in subjects:
            self.broker.subscriber(subject, decoder=self._decode)(self._handle)

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
            reply = await self.broker.request(
                self._encoder.encode(command), subject, timeout=timeout_s
            )
        except nats.errors.NoRespondersError as error:
            raise TransportError(f"{what}: nobody listens, is it running?") from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise TransportError(f"{what}: no answer in {timeout_s:g} s") from error
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"{what}: {error}") from error
        try:
            answer = msgspec.msgpack.decode(reply.body, type=CommandReply)
            if answer.error:
                raise TransportError(f"{what}: refused: {answer.error}")
            return msgspec.msgpack.decode(answer.result, type=result)
        except msgspec.MsgspecError as error:
            raise CodecError(f"{what}: unreadable answer: {error}") from error

    def statistics(self) -> ControlStatistics:
        """Return counts for metrics."""
        return ControlStatistics(handled=self._handled, refused=self._refused)

    async def _decode(self, message: NatsMessage) -> Message | CodecError:
        # FastStream swallows what a decoder raises, so the asker would wait for nothing.
        try:
            return self._decoder.decode(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return CodecError(f"command of {len(message.body)} bytes: {error}")

    async def _handle(self, command: Message | CodecError) -> bytes:
        try:
            answer = CommandReply(result=msgspec.Raw(await self._carry_out(command)))
        except KvMeshError as error:
            self._refused += 1
            self._log.warning("command refused", error=str(error))
            answer = CommandReply(error=str(error))
        except Exception as error:  # noqa: BLE001  the asker must learn of a bug here, too
            self._refused += 1
            answer = CommandReply(error=f"{type(error).__name__}: {error}")
            context = {"message": f"handler of {type(command).__name__}", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        else:
            self._handled += 1
        return self._encoder.encode(answer)

    async def _carry_out(self, command: Message | CodecError) -> bytes:
        if isinstance(command, CodecError):
            raise command
        return self._encoder.encode(await self._handlers[type(command)](command))
