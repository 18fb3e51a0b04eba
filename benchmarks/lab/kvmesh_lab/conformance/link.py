"""A gateway's side of the picker's port: connections, and calls on them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import grpc
import grpc.aio
import msgspec

from kvmesh_lab.conformance.case import Broken
from kvmesh_lab.conformance.wire import PROCESS, Answer, Ended, read_answer

Stream = grpc.aio.StreamStreamCall[bytes, bytes]

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # a link is a connection of its own
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.bdp_probe", 0),  # the window of a stream stays at 64 KB
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


class Tls(msgspec.Struct, frozen=True):
    """How the picker's certificate is checked: the PEM file `path`, for the host `name`."""

    path: Path
    name: str = ""


class Call:
    """One call of `Process`. Answers are read as they come, unless reading is paused."""

    def __init__(self, stream: Stream, patience_s: float) -> None:
        self._stream = stream
        self._patience_s = patience_s
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._reading = asyncio.Event()
        self._reading.set()
        self._reader = asyncio.create_task(self._read())
        self.ended: Ended | None = None
        self._sent = 0

    async def send(self, *messages: bytes) -> None:
        """Send messages. That the picker has ended the call raises nothing: `receive` says so."""
        try:
            for message in messages:
                await self._stream.write(message)
                self._sent += 1
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def receive(self, waiting_for: str) -> Answer:
        """Return the next answer. Raises `Broken` if none comes in time, nor anything is taken."""
        if self.ended is not None and self._answers.empty():
            return self.ended
        while True:
            sent = self._sent
            try:
                return await asyncio.wait_for(self._answers.get(), self._patience_s)
            except TimeoutError:
                if sent == self._sent:
                    text = f"nothing came in {self._patience_s:g} s; expected {waiting_for}"
                    raise Broken(text) from None

    def at_hand(self) -> list[Answer]:
        """Return the answers that came and were not received."""
        return [self._answers.get_nowait() for _ in range(self._answers.qsize())]

    def pause_reading(self) -> None:
        """Take no more messages: the window of this stream fills."""
        self._reading.clear()

    def resume_reading(self) -> None:
        """Take messages again."""
        self._reading.set()

    async def half_close(self) -> None:
        """Say that nothing else will be sent."""
        try:
            await self._stream.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    def cancel(self) -> None:
        """Reset the stream, as a gateway does whose client has gone."""
        self._reader.cancel()
        self._stream.cancel()

    async def _read(self) -> None:
        while True:
            await self._reading.wait()
            try:
                data = await self._stream.read()
            except grpc.aio.AioRpcError as error:
                await self._end(error.code(), error.details() or "")
                return
            if not isinstance(data, bytes):  # the mark of the end
                await self._end(await self._stream.code(), await self._stream.details())
                return
            try:
                answer = read_answer(data)
            except Broken as error:
                await self._end(grpc.StatusCode.UNKNOWN, str(error))
                return
            self._answers.put_nowait(answer)

    async def _end(self, code: grpc.StatusCode, text: str) -> None:
        number: int = code.value[0]
        self.ended = Ended(number, text)
        self._answers.put_nowait(self.ended)


class Link:
    """A connection to the picker."""

    def __init__(self, target: str, *, tls: Tls | None = None, patience_s: float = 5.0) -> None:
        self.patience_s = patience_s
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        else:
            named = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
            self._channel = grpc.aio.secure_channel(
                target,
                grpc.ssl_channel_credentials(root_certificates=tls.path.read_bytes()),
                options=(*_OPTIONS, *named),
            )

    @asynccontextmanager
    async def call(self) -> AsyncGenerator[Call]:
        """Yield a new call; it is reset at the end if it has not ended by then."""
        method = cast("Any", self._channel.stream_stream)(PROCESS)
        call = Call(method(), self.patience_s)
        try:
            yield call
        finally:
            call.cancel()

    async def ask_once(self, path: str, message: bytes) -> bytes:
        """Return the answer to one message. Raises `CallFailedError`, `Broken` for silence."""
        method = cast("Any", self._channel.unary_unary)(path)
        try:
            answer = await asyncio.wait_for(method(message), self.patience_s)
        except TimeoutError:
            raise Broken(f"{path}: no answer in {self.patience_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise CallFailedError(error.code().name, error.details() or "") from error
        return bytes(answer)

    async def close(self) -> None:
        """Close the connection and whatever runs on it."""
        await self._channel.close(None)


class CallFailedError(Broken):
    """A call with one message each way ended with a gRPC error, `code` in words."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"the call ended with {code}: {text}")
        self.code = code
