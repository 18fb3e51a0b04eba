"""The messages of `envoy.service.ext_proc.v3`, by the library of protobuf.

The only module that knows protobuf: outside of it messages are bytes and the structs below.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from kvmesh_lab.conformance.case import Broken
from kvmesh_lab.conformance.definitions import make_messages

PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET_SPACE: Final = "envoy.lb.subset_hint"
ENDPOINT_SPACE: Final = "envoy.lb"

Side = Literal["request", "response"]
BodyMode = Literal["NONE", "FULL_DUPLEX_STREAMED"]
Headers = Sequence[tuple[str, str]]

_MESSAGES: Final = make_messages()
_Request: Final = _MESSAGES["ProcessingRequest"]
_Response: Final = _MESSAGES["ProcessingResponse"]
_MODES: Final[dict[BodyMode, int]] = {"NONE": 0, "FULL_DUPLEX_STREAMED": 4}
_ADD_IF_ABSENT: Final = 1


class SetHeader(msgspec.Struct, frozen=True):
    """A header that the picker sets. `replaces`: what the client sent under that name is gone."""

    name: str
    value: str
    replaces: bool


class HeadersAnswer(msgspec.Struct, frozen=True):
    """The answer to headers. `metadata` is the message's dynamic metadata."""

    side: Side
    set_headers: tuple[SetHeader, ...]
    removed: tuple[str, ...]
    clears_route_cache: bool
    metadata: Mapping[str, object]


class BodyAnswer(msgspec.Struct, frozen=True):
    """A piece of a body. `streamed` is False for answers that are no `streamed_response`."""

    side: Side
    data: bytes
    end: bool
    streamed: bool


class TrailersAnswer(msgspec.Struct, frozen=True):
    """The answer to trailers."""

    side: Side


class Refusal(msgspec.Struct, frozen=True):
    """An `ImmediateResponse`."""

    status: int
    headers: tuple[SetHeader, ...]
    body: bytes


class Ended(msgspec.Struct, frozen=True):
    """The picker ended the call, with a gRPC status code."""

    code: int
    text: str


Answer = HeadersAnswer | BodyAnswer | TrailersAnswer | Refusal | Ended


class Modes(msgspec.Struct, frozen=True):
    """What the gateway says in its first message that it will send."""

    request: BodyMode = "FULL_DUPLEX_STREAMED"
    response: BodyMode = "FULL_DUPLEX_STREAMED"


def headers_message(
    side: Side,
    headers: Headers,
    *,
    end: bool,
    modes: Modes | None = None,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
) -> bytes:
    """Return the message with headers, values raw, as Envoy encodes them.

    `metadata` is the filter metadata by namespace, `modes` belong to a call's first message.
    """
    wrapped = _MESSAGES["HttpHeaders"](headers=_header_map(headers), end_of_stream=end)
    asked = _Request(**{f"{side}_headers": wrapped})
    if modes is not None:
        asked.protocol_config.request_body_mode = _MODES[modes.request]
        asked.protocol_config.response_body_mode = _MODES[modes.response]
    for space, fields in (metadata or {}).items():
        entry = asked.metadata_context.filter_metadata.add(key=space)
        json_format.ParseDict(dict(fields), entry.value)
    return bytes(asked.SerializeToString())


def in_text(message: bytes) -> bytes:
    """Return a message with request headers whose values are in `value`, not in `raw_value`."""
    asked = _Request.FromString(message)
    for header in asked.request_headers.headers.headers:
        header.value = header.raw_value.decode()
        header.raw_value = b""
    return bytes(asked.SerializeToString())


def body_message(side: Side, data: bytes, *, end: bool) -> bytes:
    """Return the message with a piece of a body."""
    piece = _MESSAGES["HttpBody"](body=data, end_of_stream=end)
    return bytes(_Request(**{f"{side}_body": piece}).SerializeToString())


def trailers_message(side: Side, trailers: Headers) -> bytes:
    """Return the message with trailers."""
    wrapped = _MESSAGES["HttpTrailers"](trailers=_header_map(trailers))
    return bytes(_Request(**{f"{side}_trailers": wrapped}).SerializeToString())


def read_answer(data: bytes) -> Answer:
    """Return what a message of the picker says. Raises `Broken` for bytes that are none."""
    answer = _Response()
    try:
        answer.ParseFromString(data)
    except DecodeError as error:
        raise Broken(f"a message of {len(data)} bytes is no ProcessingResponse: {error}") from error
    kind = str(answer.WhichOneof("response") or "")
    if kind == "immediate_response":
        refused = answer.immediate_response
        return Refusal(
            status=int(refused.status.code),
            headers=_set_headers(refused.headers),
            body=bytes(refused.body),
        )
    side, _, part = kind.partition("_")
    if side not in {"request", "response"}:
        raise Broken(f"a ProcessingResponse answers nothing (its kind is {kind or 'not set'})")
    at = cast("Side", side)
    if part == "trailers":
        return TrailersAnswer(at)
    common = getattr(answer, kind).response
    if part == "body":
        return _body_answer(at, common.body_mutation)
    try:
        metadata = json_format.MessageToDict(answer.dynamic_metadata)
    except (json_format.Error, ValueError) as error:  # the latter for NaN
        raise Broken(f"the dynamic metadata cannot be read: {error}") from error
    return HeadersAnswer(
        side=at,
        set_headers=_set_headers(common.header_mutation),
        removed=tuple(str(name).lower() for name in common.header_mutation.remove_headers),
        clears_route_cache=bool(common.clear_route_cache),
        metadata=cast("Mapping[str, object]", metadata),
    )


def _body_answer(side: Side, mutation: Any) -> BodyAnswer:  # noqa: ANN401  a generated class
    if mutation.WhichOneof("mutation") != "streamed_response":
        return BodyAnswer(side=side, data=bytes(mutation.body), end=False, streamed=False)
    piece = mutation.streamed_response
    end = bool(piece.end_of_stream or piece.end_of_stream_without_message)
    return BodyAnswer(side=side, data=bytes(piece.body), end=end, streamed=True)


def _set_headers(mutation: Any) -> tuple[SetHeader, ...]:  # noqa: ANN401  a generated class
    found: list[SetHeader] = []
    for option in mutation.set_headers:
        raw = bytes(option.header.raw_value) or str(option.header.value).encode()
        added = option.HasField("append") and bool(option.append.value)
        only_if_absent = option.append_action == _ADD_IF_ABSENT
        found.append(
            SetHeader(
                name=str(option.header.key).lower(),
                value=raw.decode("latin-1"),
                replaces=not added and not only_if_absent,
            )
        )
    return tuple(found)


def _header_map(headers: Headers) -> Any:  # noqa: ANN401  a generated class
    values = [
        _MESSAGES["HeaderValue"](key=name, raw_value=value.encode()) for name, value in headers
    ]
    return _MESSAGES["HeaderMap"](headers=values)
