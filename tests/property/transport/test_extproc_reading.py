from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.errors import CodecError
from kvmesh.transport.grpc.extproc_messages import (
    KINDS,
    GatewayMessage,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    decode,
)
from tests.property.transport.extproc_messages import DESTINATION, messages

NAMES = (
    "request_headers",
    "response_headers",
    "request_body",
    "response_body",
    "request_trailers",
    "response_trailers",
)


def words(value: Any) -> tuple[str, ...]:
    """Return the endpoints of a Value, as the protocol has them."""
    kind = value.WhichOneof("kind")
    texts = [one.string_value for one in value.list_value.values] if kind == "list_value" else []
    if kind == "string_value":
        texts = [value.string_value]
    return tuple(word for text in texts for one in text.split(",") if (word := one.strip(" ")))


def reported(message: wire.ProcessingRequest, space: str, key: str) -> tuple[str, ...] | None:
    fields = message.metadata_context.filter_metadata
    if space not in fields or key not in fields[space].fields:
        return None
    return words(fields[space].fields[key])


def attributes(message: wire.ProcessingRequest) -> dict[str, Any] | None:
    if not message.attributes:
        return None
    found = {}
    for struct in message.attributes.values():
        for name, value in struct.fields.items():
            kind = value.WhichOneof("kind")
            if kind in {"string_value", "number_value", "bool_value"}:
                found[name] = getattr(value, kind)
    return found


def headers_of(part: Any) -> list[tuple[bytes, bytes]]:
    return [(one.key.encode().lower(), one.raw_value or one.value.encode()) for one in part.headers]


def expected(message: wire.ProcessingRequest) -> GatewayMessage:
    """Return what a message says, read by the protocol's own library."""
    name = str(message.WhichOneof("request"))
    part, kind = getattr(message, name), KINDS[NAMES.index(name)]
    if kind is RequestBody or kind is ResponseBody:
        return kind(part.body, part.end_of_stream or part.end_of_stream_without_message)
    if kind is RequestHeaders:
        modes = None
        if message.HasField("protocol_config"):
            one = message.protocol_config
            modes = Modes(one.request_body_mode, one.response_body_mode)
        subset = reported(message, "envoy.lb.subset_hint", f"{DESTINATION}-subset")
        found = headers_of(part.headers)
        return RequestHeaders(found, part.end_of_stream, subset, modes, attributes(message))
    if kind is ResponseHeaders:
        served = (reported(message, "envoy.lb", f"{DESTINATION}-served") or ("",))[0]
        return ResponseHeaders(
            headers_of(part.headers), part.end_of_stream, served, attributes(message)
        )
    assert kind is RequestTrailers or kind is ResponseTrailers
    return kind(headers_of(part.trailers))


@given(messages())
def test_a_message_says_what_the_protocols_own_library_reads(
    message: wire.ProcessingRequest,
) -> None:
    assert decode(message.SerializeToString()) == expected(message)


def test_attributes_are_texts_numbers_and_flags() -> None:
    message = wire.ProcessingRequest()
    message.request_headers.end_of_stream = True
    given = {"text": "x", "number": 2.5, "flag": True, "no flag": False}
    message.attributes["envoy.filters.http.ext_proc"].update({**given, "null": None, "list": [1]})

    found = decode(message.SerializeToString())

    assert isinstance(found, RequestHeaders)
    assert (found.attributes, found.end_of_stream) == (given, True)


def shown(message: GatewayMessage) -> str:
    """Return it as text: NaN is not itself, and a map has no order."""
    fields = ((name, getattr(message, name)) for name in message.__struct_fields__)
    parts = [sorted(one.items()) if isinstance(one, dict) else one for _, one in fields]
    return repr((type(message), parts))


def check(data: bytes) -> None:
    """What is read, and that the library does not refuse, it reads so, too."""
    try:
        found = decode(data)
        message = wire.ProcessingRequest.FromString(data)
    except (CodecError, DecodeError):
        return
    assert shown(found) == shown(expected(message))


@given(messages(), st.data())
def test_garbage_is_refused_or_read_as_the_library_does(
    message: wire.ProcessingRequest, data: st.DataObject
) -> None:
    torn = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        if torn:
            at = data.draw(st.integers(0, len(torn) - 1))
            torn[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))

    check(bytes(torn))


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_read_as_the_library_does(data: bytes) -> None:
    check(data)
