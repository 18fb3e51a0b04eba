"""An endpoint picker that is right and simple, on grpc.aio, and the faults it can be given.

Not kvmesh: what the suite asks for must be what the protocol asks for.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import grpc
import grpc.aio
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as proto
from google.protobuf import json_format

Fault = Literal[
    "closes-early",
    "obeys-client",
    "appends",
    "ends-twice",
    "one-at-a-time",
    "truncates",
    "gives-up-large",
    "ignores-subset",
    "falls-back",
    "holds-answer",
    "decodes-text",
    "no-metadata",
    "header-subset",
    "forgets-trailers",
    "unstreamed",
    "unbounded",
    "never-ends",
    "unhealthy",
    "bad-json-ends-call",
]
DESTINATION = "x-gateway-destination-endpoint"
SUBSET = f"{DESTINATION}-subset"
PIECE = 62_000
LARGE = 65_536


class RefusedError(Exception):
    """The request gets an ImmediateResponse."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ReferencePicker:
    """Picks the endpoints of `pool` in turns; `fault` is what is wrong with it."""

    def __init__(self, pool: tuple[str, ...], fault: Fault | None = None) -> None:
        self.pool = pool
        self.fault = fault
        self.picks = 0
        self._turns = itertools.count()
        self._one = asyncio.Lock()

    async def process(self, requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[bytes]:
        """One call of `Process`."""
        if self.fault == "one-at-a-time":
            async with self._one:
                async for answer in self._process(requests, context):
                    yield answer
        else:
            async for answer in self._process(requests, context):
                yield answer

    async def _process(self, requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[bytes]:
        first: Any = None
        body = bytearray()
        held = bytearray()
        done = False
        async for data in requests:
            asked = proto.ProcessingRequest.FromString(data)
            kind = asked.WhichOneof("request")
            first = first or asked
            if kind.startswith("response"):
                answers = self._pass_on(kind, getattr(asked, kind), held)
            elif not self._is_complete(asked, kind, body, done):
                answers = []
            elif done:
                answers = self._body(bytes(asked.request_body.body), end=True)
            else:
                done = True
                await self._give_up(body, context)
                answers = self._answer(first, bytes(body), trailers=kind == "request_trailers")
            for answer in answers:
                yield answer.SerializeToString()
            if done and self.fault == "closes-early":
                return
        if self.fault == "never-ends":
            await asyncio.Event().wait()

    def _is_complete(self, asked: Any, kind: str, body: bytearray, done: bool) -> bool:
        part = getattr(asked, kind)
        if kind == "request_trailers":
            return True
        if kind == "request_headers":
            return bool(part.end_of_stream) or asked.protocol_config.request_body_mode == 0
        if done:  # Envoy may send the last piece twice
            return self.fault == "ends-twice"
        body += part.body
        return bool(part.end_of_stream)

    async def _give_up(self, body: bytearray, context: Any) -> None:
        if self.fault == "gives-up-large" and len(body) > LARGE:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
        if self.fault == "bad-json-ends-call" and not body.endswith(b"}"):
            await context.abort(grpc.StatusCode.INTERNAL, "no JSON")

    def _answer(self, first: Any, body: bytes, *, trailers: bool) -> list[Any]:
        try:
            answers = [self._pick(first)]
        except RefusedError as refused:
            return [refusal(refused)]
        if body:
            whole = body[:LARGE] if self.fault == "truncates" else body
            answers += self._body(whole, end=not trailers)
        if trailers and self.fault != "forgets-trailers":
            answers.append(proto.ProcessingResponse(request_trailers=proto.TrailersResponse()))
        return answers

    def _pick(self, first: Any) -> Any:
        self.picks += 1
        headers = {one.key: one.raw_value.decode() for one in first.request_headers.headers.headers}
        allowed = self._allowed(first, headers)
        start = next(self._turns) % len(allowed)
        chosen = ",".join((allowed[start:] + allowed[:start])[:2])
        if self.fault == "obeys-client":
            chosen = headers.get(DESTINATION, chosen)
        option = base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=DESTINATION, raw_value=chosen.encode()),
            append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        if self.fault == "appends":
            option.append.value = True
        common = proto.CommonResponse(
            header_mutation=proto.HeaderMutation(set_headers=[option]), clear_route_cache=True
        )
        answer = proto.ProcessingResponse(request_headers=proto.HeadersResponse(response=common))
        if self.fault != "no-metadata":
            json_format.ParseDict({"envoy.lb": {DESTINATION: chosen}}, answer.dynamic_metadata)
        return answer

    def _allowed(self, first: Any, headers: dict[str, str]) -> list[str]:
        reported = json_format.MessageToDict(
            first.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        )
        subset: Any = reported.get(SUBSET)
        if self.fault == "header-subset" and SUBSET in headers:
            subset = headers[SUBSET]
        if subset is None or self.fault == "ignores-subset":
            return list(self.pool)
        named = subset.split(",") if isinstance(subset, str) else subset
        allowed = [one.strip() for one in named if one.strip() in self.pool]
        if not allowed:
            if self.fault == "falls-back":
                return list(self.pool)
            raise RefusedError(503, "no endpoint of the subset is in the pool")
        return allowed

    def _body(self, body: bytes, *, end: bool, side: str = "request") -> list[Any]:
        if self.fault == "unstreamed":
            common = proto.CommonResponse()
            part = proto.BodyResponse(response=common)
            return [proto.ProcessingResponse(**{f"{side}_body": part})]
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)] or [b""]
        made = []
        for number, piece in enumerate(pieces, 1):
            streamed = proto.StreamedBodyResponse(
                body=piece, end_of_stream=end and number == len(pieces)
            )
            mutation = proto.BodyMutation(streamed_response=streamed)
            part = proto.BodyResponse(response=proto.CommonResponse(body_mutation=mutation))
            made.append(proto.ProcessingResponse(**{f"{side}_body": part}))
        return made

    def _pass_on(self, kind: str, part: Any, held: bytearray) -> list[Any]:
        if kind == "response_headers":
            return [proto.ProcessingResponse(response_headers=proto.HeadersResponse())]
        if kind == "response_trailers":
            return [proto.ProcessingResponse(response_trailers=proto.TrailersResponse())]
        body = bytes(part.body)
        if self.fault == "decodes-text":
            body = body.decode("utf-8", "replace").encode()
        if self.fault == "holds-answer":
            held += body
            if not part.end_of_stream:
                return []
            body = bytes(held)
        return self._body(body, end=part.end_of_stream, side="response")

    async def process_unbounded(
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncGenerator[bytes]:
        """As `process`, but reads on however little of its answers is taken."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def read() -> None:
            async for answer in self._process(requests, context):
                queue.put_nowait(answer)
            queue.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (answer := await queue.get()) is not None:
                yield answer
        finally:
            reading.cancel()


def refusal(refused: RefusedError) -> Any:
    """Return the ImmediateResponse of a refusal."""
    option = base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key="content-type", raw_value=b"application/json")
    )
    answer = proto.ProcessingResponse()
    answer.immediate_response.status.code = refused.status
    answer.immediate_response.headers.set_headers.append(option)
    answer.immediate_response.body = f'{{"error":{{"message":"{refused}"}}}}'.encode()
    return answer


async def health(message: bytes, context: Any) -> bytes:
    """Answer `Check` as the protocol says."""
    service = message[2:].decode()
    if service in {"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"}:
        return b"\x08\x01"
    await context.abort(grpc.StatusCode.NOT_FOUND, f"{service} is not here")
    raise AssertionError


async def not_serving(_message: bytes, _context: Any) -> bytes:
    return b"\x08\x02"


@asynccontextmanager
async def serving(picker: ReferencePicker, port: int = 0) -> AsyncGenerator[str]:
    """Yield the address at which `picker` is served."""
    server = grpc.aio.server()
    process = picker.process_unbounded if picker.fault == "unbounded" else picker.process
    check = not_serving if picker.fault == "unhealthy" else health
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "envoy.service.ext_proc.v3.ExternalProcessor",
                {"Process": grpc.stream_stream_rpc_method_handler(process)},
            ),
            grpc.method_handlers_generic_handler(
                "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
            ),
        )
    )
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(None)
