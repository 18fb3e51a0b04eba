"""The naive model of kvmesh/native/wire/extproc_write.c: answers to a gateway, as bytes."""

from collections.abc import Sequence
from typing import Final

from kvmesh.transport.extproc.messages import ENDPOINT
from kvmesh.transport.extproc.writing import VARINT, write_bytes, write_varint
from kvmesh.transport.http.wire.headers import Headers
from tests.reference.transport.fields import LB_NAMESPACE

_METADATA: Final = 8
_OVERWRITE: Final = write_varint(3 << 3 | VARINT) + write_varint(2)
"""HeaderValueOption.append_action = OVERWRITE_IF_EXISTS_OR_ADD."""
_CLEAR: Final = write_varint(5 << 3 | VARINT) + b"\1"
"""CommonResponse.clear_route_cache."""
_END: Final = write_varint(2 << 3 | VARINT) + b"\1"
"""StreamedBodyResponse.end_of_stream."""


def answer(
    field: int,
    headers: Headers,
    removed: Sequence[bytes],
    endpoint: bytes | None,
    body: bytes | None,
    /,
) -> bytes:
    """Return what `_native.write_extproc` does."""
    if endpoint is not None:
        headers = [(ENDPOINT.encode(), endpoint), *headers]
    mutation = _mutation(headers, removed)
    common = write_bytes(2, mutation) if mutation else b""
    if endpoint is not None:
        common += _CLEAR
    if body is not None:
        common += write_bytes(3, write_bytes(1, body))
    reported = write_bytes(field, write_bytes(1, common) if common else b"")
    return reported if endpoint is None else reported + _metadata(endpoint)


def piece(field: int, data: bytes, end: bool, /) -> bytes:
    """Return what `_native.write_extproc_piece` does."""
    streamed = write_bytes(1, data) if data else b""
    if end:
        streamed += _END
    return write_bytes(field, write_bytes(1, write_bytes(3, write_bytes(3, streamed))))


def _mutation(headers: Headers, removed: Sequence[bytes]) -> bytes:
    """Return the fields of a HeaderMutation; what is set replaces all of the same name."""
    parts = [
        write_bytes(1, write_bytes(1, write_bytes(1, name) + write_bytes(3, value)) + _OVERWRITE)
        for name, value in headers
    ]
    parts += [write_bytes(2, name) for name in removed]
    return b"".join(parts)


def _metadata(endpoint: bytes) -> bytes:
    """Return the field of dynamic metadata that names the endpoint."""
    value = write_bytes(3, endpoint)
    inner = write_bytes(1, write_bytes(1, ENDPOINT.encode()) + write_bytes(2, value))
    entry = write_bytes(1, LB_NAMESPACE.encode()) + write_bytes(2, write_bytes(5, inner))
    return write_bytes(_METADATA, write_bytes(1, entry))
