"""Commands and their answers as bytes: the same over every transport of the event plane."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import CodecError, KvMeshError, TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import Handler, T
from kvmesh.tasks import report

_encoder = msgspec.msgpack.Encoder()


class CommandReply(msgspec.Struct, frozen=True):
    """What every command is answered with: `error` is "" when it was done."""

    error: str = ""
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class ControlStatistics(msgspec.Struct, frozen=True):
    """Counts since the process started. `refused` were garbage, unknown, or failed."""

    handled: int
    refused: int


class CommandDesk:
    """Carries out the commands of one process by `handlers`, each mapped from its tagged struct."""

    def __init__(self, handlers: Mapping[type[Message], Handler]) -> None:
        self._handlers = dict(handlers)
        kinds: Any = None
        for kind in handlers:
            kinds = kind if kinds is None else kinds | kind
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kinds)
        self._handled = self._refused = 0
        self._log = get_logger()

    async def handle(self, body: bytes) -> bytes:
        """Carry out the command in `body`, return the answer's bytes. Never raises."""
        kind = f"command of {len(body)} bytes"
        try:
            command = self._decode(body)
            kind = type(command).__name__
            result = await self._handlers[type(command)](command)
            answer = CommandReply(result=msgspec.Raw(_encoder.encode(result)))
        except KvMeshError as error:
            self._refused += 1
            self._log.warning("command refused", error=str(error))
            answer = CommandReply(error=str(error))
        except Exception as error:  # noqa: BLE001  the asker must learn of a bug here, too
            self._refused += 1
            answer = CommandReply(error=f"{type(error).__name__}: {error}")
            report("command", error, detail=f"handler of {kind}")
        else:
            self._handled += 1
        return _encoder.encode(answer)

    def statistics(self) -> ControlStatistics:
        """Return counts for metrics."""
        return ControlStatistics(handled=self._handled, refused=self._refused)

    def _decode(self, body: bytes) -> Message:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CodecError(f"command of {len(body)} bytes: {error}") from error


def encode_command(command: Message) -> bytes:
    """Return what `CommandDesk.handle` reads."""
    return _encoder.encode(command)


def decode_reply(what: str, body: bytes, result: type[T]) -> T:
    """Return the result in an answer.

    Raises `TransportError` when `what` was refused, `CodecError` for an answer of another type.
    """
    try:
        answer = msgspec.msgpack.decode(body, type=CommandReply)
        if answer.error:
            raise TransportError(f"{what}: refused: {answer.error}")
        return msgspec.msgpack.decode(answer.result, type=result)
    except UNREADABLE as error:
        raise CodecError(f"{what}: unreadable answer: {error}") from error
