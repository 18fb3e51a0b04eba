"""What a gateway tells a processor of one request and its response."""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh._native import read_extproc
from kvmesh.errors import CodecError
from kvmesh.transport.http.wire.headers import Headers

ENDPOINT: Final = "x-gateway-destination-endpoint"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
"""Names of the endpoint picker protocol.

Source: Gateway API Inference Extension, docs/proposals/004-endpoint-picker-protocol, v1.0.0.
"""

NO_BODY: Final = 0
STREAMED: Final = 1
BUFFERED: Final = 2
BUFFERED_PARTIAL: Final = 3
FULL_DUPLEX: Final = 4
"""How bodies are sent. Source: envoy.extensions.filters.http.ext_proc.v3.ProcessingMode."""

Attribute = str | float | bool
Attributes = Mapping[str, Attribute]


class Modes(msgspec.Struct, frozen=True, gc=False):
    """How the gateway sends the bodies of this stream; it says so with the first message."""

    request_body: int
    response_body: int


class RequestHeaders(msgspec.Struct, gc=False):
    """The head of a request; `:method`, `:path` and `:authority` are among `headers`.

    Names are lower case. `subset` are the endpoints (`ip:port`) that alone may be picked, None
    where the gateway says nothing of it. `modes` is None where it does not tell them. `attributes`
    are those that it was configured to send, by name.
    """

    headers: Headers
    end_of_stream: bool
    subset: tuple[str, ...] | None
    modes: Modes | None
    attributes: Attributes | None


class RequestBody(msgspec.Struct, gc=False):
    """A piece of a request's body. `end_of_stream`: the last, which may be empty."""

    data: bytes
    end_of_stream: bool


class RequestTrailers(msgspec.Struct, gc=False):
    """What ends a body that ends without `end_of_stream`."""

    headers: Headers


class ResponseHeaders(msgspec.Struct, gc=False):
    """The head of a response; `:status` is among `headers`. `served`: who answered, "" untold."""

    headers: Headers
    end_of_stream: bool
    served: str
    attributes: Attributes | None


class ResponseBody(msgspec.Struct, gc=False):
    """A piece of a response's body. `end_of_stream`: the last, which may be empty."""

    data: bytes
    end_of_stream: bool


class ResponseTrailers(msgspec.Struct, gc=False):
    """What ends a response's body that ends without `end_of_stream`."""

    headers: Headers


GatewayMessage = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
)
KINDS: Final = (
    RequestHeaders,
    ResponseHeaders,
    RequestBody,
    ResponseBody,
    RequestTrailers,
    ResponseTrailers,
)
"""By the number of their field in a ProcessingRequest, from 2 on."""

_TYPES: Final = (*KINDS, Modes, CodecError)


def decode(data: bytes) -> GatewayMessage:
    """Return what a gateway's message says.

    Of a field that may stand once the last counts. Fields and metadata that a picker has no use for
    are skipped. Raises `CodecError` for what is no `ProcessingRequest`, or an empty one.
    """
    return read_extproc(_TYPES, data)
