"""What a gateway does with a picker, without the gateway: asks, sends the request, tells of it.

gRPC's own library speaks, so what is tested is the protocol and not our reading of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
import grpc.aio
import httpx
import msgspec
from envoy.config.core.v3 import base_pb2 as base
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

DESTINATION: Final = "x-gateway-destination-endpoint"
PIECE: Final = 32 * 1024
STREAMED: Final = modes.ProcessingMode.FULL_DUPLEX_STREAMED
HEALTH: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"


class RefusedError(Exception):
    """The picker answered in place of an engine."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.headers = headers
        self.body = body


class Gateway:
    """Asks one picker."""

    def __init__(self, address: str, tls: grpc.ChannelCredentials | None = None) -> None:
        self.address = address
        own = [("grpc.use_local_subchannel_pool", 1)]
        if tls is None:
            self.channel = grpc.aio.insecure_channel(address, own)
        else:
            self.channel = grpc.aio.secure_channel(address, tls, own)
        self._stub = service.ExternalProcessorStub(self.channel)

    async def close(self) -> None:
        await self.channel.close(None)

    async def is_serving(self, service: str = "") -> bool:
        """Return what the picker's gRPC health says; False when it is not there."""
        ask = self.channel.unary_unary(HEALTH, bytes, bytes)
        name = bytes((0x0A, len(service))) + service.encode() if service else b""
        try:
            answer: bytes = await ask(name, timeout=2)
        except grpc.aio.AioRpcError:
            return False
        return answer == SERVING

    @contextlib.asynccontextmanager
    async def ask(
        self, body: bytes, headers: Mapping[str, str], path: str = "/v1/chat/completions"
    ) -> AsyncIterator["Asked"]:
        """Yield an exchange whose pick is made; it is given up when the block ends."""
        call = self._stub.Process()
        try:
            asked = Asked(call)
            await asked.pick(body, {":method": "POST", ":path": path, **headers})
            yield asked
        finally:
            call.cancel()


class Asked:
    """One exchange with a picker. `endpoint` is its first choice, once it was made."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.endpoint = ""
        self.headers: dict[str, str] = {}
        self.removed: tuple[str, ...] = ()
        self.metadata = ""
        self.body = b""

    async def pick(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request in pieces; take the pick and the body that comes back.

        Raises `RefusedError` for what the picker answers itself.
        """
        shown = {":scheme": "http", ":authority": "gateway", "content-type": "application/json"}
        head = wire.HttpHeaders(headers=_header_map({**shown, **headers}), end_of_stream=not body)
        mode = wire.ProtocolConfiguration(request_body_mode=STREAMED, response_body_mode=STREAMED)
        await self._call.write(wire.ProcessingRequest(request_headers=head, protocol_config=mode))
        # Read from now on: once a write fails, gRPC's library gives no message out.
        first = asyncio.ensure_future(self._read())
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for start in range(0, len(body), PIECE):
                piece = body[start : start + PIECE]
                part = wire.HttpBody(body=piece, end_of_stream=start + PIECE >= len(body))
                await self._call.write(wire.ProcessingRequest(request_body=part))
        answer = await first
        change = answer.request_headers.response.header_mutation
        self.headers = {one.header.key: _value(one.header) for one in change.set_headers}
        self.removed = tuple(change.remove_headers)
        reported = answer.dynamic_metadata.fields["envoy.lb"].struct_value
        self.metadata = reported.fields[DESTINATION].string_value
        self.endpoint = self.headers[DESTINATION].partition(",")[0]
        back = b""
        ended = not body
        while not ended:
            piece = (await self._read()).request_body.response.body_mutation.streamed_response
            back += piece.body
            ended = piece.end_of_stream
        self.body = back

    async def answered(self, answer: httpx.Response) -> dict[str, str]:
        """Tell of an answer that begins; return the headers it gets."""
        head = {":status": str(answer.status_code), **answer.headers}
        reported = wire.HttpHeaders(headers=_header_map(head))
        await self._call.write(wire.ProcessingRequest(response_headers=reported))
        change = (await self._read()).response_headers.response.header_mutation
        return {one.header.key: _value(one.header) for one in change.set_headers}

    async def passed(self, piece: bytes, *, last: bool = False) -> bytes:
        """Pass a piece of the answer through the picker."""
        part = wire.HttpBody(body=piece, end_of_stream=last)
        await self._call.write(wire.ProcessingRequest(response_body=part))
        back = bytearray()
        while True:
            got = (await self._read()).response_body.response.body_mutation.streamed_response
            back += got.body
            if got.end_of_stream if last else len(back) >= len(piece):
                return bytes(back)

    async def _read(self) -> wire.ProcessingResponse:
        answer = await self._call.read()
        if not isinstance(answer, wire.ProcessingResponse):
            raise ConnectionError(f"the picker ended the stream: {await self._call.code()}")
        found: wire.ProcessingResponse = answer
        if found.WhichOneof("response") == "immediate_response":
            refusal = found.immediate_response
            headers = {one.header.key: _value(one.header) for one in refusal.headers.set_headers}
            raise RefusedError(int(refusal.status.code), headers, refusal.body)
        return found


async def serve(
    gateway: Gateway, client: httpx.AsyncClient, body: bytes, headers: Mapping[str, str]
) -> tuple[bytes, dict[str, str]]:
    """Do what a gateway does with one request; return the answer, and what the picker told of it.

    Raises `RefusedError`, `ConnectionError` or gRPC's error where the picker does not see it
    through.
    """
    async with gateway.ask(body, headers) as asked:
        names = {"content-type": "application/json", **headers}
        url = f"http://{asked.endpoint}/v1/chat/completions"
        async with client.stream("POST", url, content=asked.body, headers=names) as answer:
            reported = await asked.answered(answer)
            whole = b""
            async for piece in answer.aiter_raw():
                assert await asked.passed(piece) == piece
                whole += piece
            assert await asked.passed(b"", last=True) == b""
        return whole, reported


def _header_map(headers: Mapping[str, str]) -> base.HeaderMap:
    pairs = [base.HeaderValue(key=name, raw_value=text.encode()) for name, text in headers.items()]
    return base.HeaderMap(headers=pairs)


def _value(header: base.HeaderValue) -> str:
    found: bytes = header.raw_value or header.value.encode()
    return found.decode()


def chat(text: str, *, tokens: int = 4, stream: bool = True) -> bytes:
    """Return a chat's body."""
    turns = [{"role": "user", "content": text}]
    return msgspec.json.encode(
        {"model": "mock", "stream": stream, "max_tokens": tokens, "messages": turns}
    )
