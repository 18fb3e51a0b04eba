"""An endpoint picker of gRPC's own library, by turns over its endpoints: what proves the gateway.

As a process of its own: `python -m tests.integration.gateway.pretend_picker PORT ENDPOINT…`.
"""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from envoy.type.v3 import http_status_pb2

DESTINATION = "x-gateway-destination-endpoint"
PIECE = 62 * 1024
STREAMED = modes.ProcessingMode.FULL_DUPLEX_STREAMED
SERVING = b"\x08\x01"
MOST = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]


class PretendPicker:
    """Follows each exchange to its end. `picks` has what was answered, `served` who served by
    Envoy's word, `ends` how each stream ended: `done` or `gone`.
    """

    def __init__(self, endpoints: Sequence[str], alternatives: int = 1) -> None:
        self.port = 0
        self.endpoints = list(endpoints)
        self.picks: list[str] = []
        self.served: list[str] = []
        self.subsets: list[list[str]] = []
        self.spoofed: list[str] = []
        self.ends: list[str] = []
        self.refuse_with = 0
        self.silent = False
        self._alternatives = alternatives
        self._turn = itertools.count()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> int:
        server = self._server = grpc.aio.server(options=MOST)
        service.add_ExternalProcessorServicer_to_server(self, server)
        check = grpc.unary_unary_rpc_method_handler(_check)
        health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})
        server.add_generic_rpc_handlers((health,))
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return self.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def Process(  # noqa: N802  gRPC's name
        self, request_iterator: AsyncIterator[wire.ProcessingRequest], context: object
    ) -> AsyncIterator[wire.ProcessingResponse]:
        del context
        exchange = _Exchange(self)
        try:
            async for request in request_iterator:
                if self.silent:
                    continue
                for answer in exchange.answer(request):
                    yield answer
        except asyncio.CancelledError:
            self.ends.append("gone")
            raise
        self.ends.append("done")

    def pick(self) -> str:
        first = next(self._turn) % len(self.endpoints)
        order = self.endpoints[first:] + self.endpoints[:first]
        self.picks.append(",".join(order[: self._alternatives]))
        return self.picks[-1]


class _Exchange:
    """One request: the pick is its body's answer, in the modes that show the body."""

    def __init__(self, picker: PretendPicker) -> None:
        self._picker = picker
        self._request_mode = self._response_mode = 0
        self._body: list[bytes] = []
        self._picked = False

    def answer(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        if request.HasField("protocol_config"):
            self._request_mode = request.protocol_config.request_body_mode
            self._response_mode = request.protocol_config.response_body_mode
        kind = request.WhichOneof("request")
        found: list[wire.ProcessingResponse] = getattr(self, f"_{kind}")(request)
        return found

    def _request_headers(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        self._see(request)
        waits = self._request_mode in {STREAMED, modes.ProcessingMode.BUFFERED}
        if request.request_headers.end_of_stream or not waits:
            return self._pick(at="request_headers")
        if self._request_mode == STREAMED:
            return []
        return [wire.ProcessingResponse(request_headers=wire.HeadersResponse())]

    def _see(self, request: wire.ProcessingRequest) -> None:
        hint = request.metadata_context.filter_metadata.get("envoy.lb.subset_hint")
        if hint is not None:
            listed = hint.fields[f"{DESTINATION}-subset"].list_value.values
            self._picker.subsets.append([one.string_value for one in listed])
        for header in request.request_headers.headers.headers:
            if header.key.startswith(DESTINATION):
                self._picker.spoofed.append(header.key)

    def _pick(self, at: str = "") -> list[wire.ProcessingResponse]:
        self._picked = True
        if self._picker.refuse_with:
            refusal = wire.ImmediateResponse(
                status=http_status_pb2.HttpStatus(code=self._picker.refuse_with),
                body=b'{"error":{"message":"no room"}}',
            )
            return [wire.ProcessingResponse(immediate_response=refusal)]
        chosen = self._picker.pick()
        common = wire.CommonResponse(clear_route_cache=True)
        option = common.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = DESTINATION, chosen.encode()
        answer = wire.ProcessingResponse()
        if not at and self._request_mode == modes.ProcessingMode.BUFFERED:
            answer.request_body.response.CopyFrom(common)
        else:
            answer.request_headers.response.CopyFrom(common)
        answer.dynamic_metadata.get_or_create_struct("envoy.lb").update({DESTINATION: chosen})
        return [answer]

    def _request_body(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        body = request.request_body
        if self._request_mode == STREAMED:
            self._body.append(body.body)
            if not body.end_of_stream or self._picked:
                return []
            return [*self._pick(), *self._echo(end=True)]
        if not self._picked:
            return self._pick()
        return [wire.ProcessingResponse(request_body=wire.BodyResponse())]

    def _request_trailers(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        del request
        answers = [] if self._picked else [*self._pick(), *self._echo(end=False)]
        return [*answers, wire.ProcessingResponse(request_trailers=wire.TrailersResponse())]

    def _echo(self, *, end: bool) -> list[wire.ProcessingResponse]:
        whole = b"".join(self._body)
        starts = range(0, len(whole), PIECE) or range(1)
        answers = []
        for start in starts:
            piece = whole[start : start + PIECE]
            last = end and start + PIECE >= len(whole)
            answers.append(wire.ProcessingResponse(request_body=_piece(piece, end=last)))
        return answers

    def _response_headers(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        lb = request.metadata_context.filter_metadata.get("envoy.lb")
        if lb is not None:
            self._picker.served.append(lb.fields[f"{DESTINATION}-served"].string_value)
        return [wire.ProcessingResponse(response_headers=wire.HeadersResponse())]

    def _response_body(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        body = request.response_body
        if self._response_mode != STREAMED:
            return [wire.ProcessingResponse(response_body=wire.BodyResponse())]
        answer = _piece(body.body, end=body.end_of_stream)
        return [wire.ProcessingResponse(response_body=answer)]

    def _response_trailers(self, request: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
        del request
        return [wire.ProcessingResponse(response_trailers=wire.TrailersResponse())]


def _piece(data: bytes, *, end: bool) -> wire.BodyResponse:
    streamed = wire.StreamedBodyResponse(body=data, end_of_stream=end)
    mutation = wire.BodyMutation(streamed_response=streamed)
    return wire.BodyResponse(response=wire.CommonResponse(body_mutation=mutation))


async def _check(request: bytes, context: object) -> bytes:
    """Answer `grpc.health.v1.Health/Check`: always serving."""
    del request, context
    return SERVING


async def main() -> None:
    picker = PretendPicker(sys.argv[2:])
    await picker.start(int(sys.argv[1]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
