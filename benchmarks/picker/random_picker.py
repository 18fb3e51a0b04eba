"""An endpoint picker of gRPC's own asyncio server that picks at random: what others start from.

`python -m benchmarks.picker.random_picker PORT ENDPOINT…`
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service

DESTINATION = "x-gateway-destination-endpoint"
PIECE = 62_000
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


class RandomPicker:
    """Holds the body, picks, sends the body back; then echoes the response."""

    def __init__(self, endpoints: list[str]) -> None:
        self._endpoints = endpoints

    async def Process(  # noqa: N802  gRPC's name
        self, requests: AsyncIterator[wire.ProcessingRequest], _: object
    ) -> AsyncIterator[wire.ProcessingResponse]:
        body: list[bytes] = []
        async for request in requests:
            kind = request.WhichOneof("request")
            if kind == "request_body":
                body.append(request.request_body.body)
                if request.request_body.end_of_stream:
                    for answer in self._pick(b"".join(body)):
                        yield answer
            elif kind == "response_headers":
                yield wire.ProcessingResponse(response_headers=wire.HeadersResponse())
            elif kind == "response_body":
                received = request.response_body
                yield wire.ProcessingResponse(
                    response_body=piece(received.body, received.end_of_stream)
                )
                if received.end_of_stream:
                    return

    def _pick(self, body: bytes) -> list[wire.ProcessingResponse]:
        chosen = random.choice(self._endpoints)
        first = wire.ProcessingResponse()
        common = first.request_headers.response
        common.clear_route_cache = True
        header = common.header_mutation.set_headers.add().header
        header.key, header.raw_value = DESTINATION, chosen.encode()
        first.dynamic_metadata.get_or_create_struct("envoy.lb").update({DESTINATION: chosen})
        answers = [first]
        for at in range(0, len(body), PIECE):
            part = piece(body[at : at + PIECE], at + PIECE >= len(body))
            answers.append(wire.ProcessingResponse(request_body=part))
        return answers


def piece(data: bytes, end: bool) -> wire.BodyResponse:
    found = wire.BodyResponse()
    streamed = found.response.body_mutation.streamed_response
    streamed.body, streamed.end_of_stream = data, end
    return found


async def check(request: bytes, context: object) -> bytes:
    """Answer `grpc.health.v1.Health/Check`: SERVING."""
    del request, context
    return b"\x08\x01"


async def main() -> None:
    server = grpc.aio.server(options=OPTIONS)
    health = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": health}),)
    )
    service.add_ExternalProcessorServicer_to_server(RandomPicker(sys.argv[2:]), server)
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
