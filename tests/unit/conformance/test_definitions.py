"""The suite's own definitions of ext_proc's messages are Envoy's."""

from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from envoy.type.v3 import http_status_pb2
from google.protobuf import wrappers_pb2

from kvmesh_lab.conformance.definitions import MESSAGES, ONEOFS

AT_ENVOYS: dict[str, Any] = {
    **external_processor_pb2.DESCRIPTOR.message_types_by_name,
    **base_pb2.DESCRIPTOR.message_types_by_name,
    **http_status_pb2.DESCRIPTOR.message_types_by_name,
    **wrappers_pb2.DESCRIPTOR.message_types_by_name,
    "FilterMetadataEntry": base_pb2.Metadata.DESCRIPTOR.nested_types_by_name["FilterMetadataEntry"],
}
ENUM, INT32 = 14, 5


def kind_of(field: Any) -> str:
    """Return a field's type as the suite writes it."""
    if field.message_type is not None:
        name: str = field.message_type.full_name
        plain = f".{name}" if name == "google.protobuf.Struct" else field.message_type.name
    else:
        number = INT32 if field.type == ENUM else field.type
        plain = {8: "bool", 9: "string", 12: "bytes", INT32: "int32"}[number]
    return f"*{plain}" if field.is_repeated else plain


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_have_the_numbers_and_types_of_envoys(name: str) -> None:
    theirs = {field.name: (field.number, kind_of(field)) for field in AT_ENVOYS[name].fields}

    ours = MESSAGES[name]

    assert {field: theirs[field] for field in ours} == ours


@pytest.mark.parametrize("name", ONEOFS)
def test_of_the_same_fields_one_is_set(name: str) -> None:
    oneof, members = ONEOFS[name]

    theirs = AT_ENVOYS[name].oneofs_by_name[oneof]

    assert sorted(field.number for field in theirs.fields) == list(members)
