"""Answers to a gateway, as bytes."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal

from kvmesh.transport.grpc.extproc_messages import ENDPOINT
from kvmesh.transport.http.wire.headers import Headers

VARINT: Final = 0
BYTES: Final = 2


def write_varint(value: int) -> bytes:
    """Return `value`, which is not negative, as a varint."""
    if value < 0x80:  # noqa: PLR2004  one byte
        return _SHORT[value]
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004  seven bits at a time
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = tuple(bytes((value,)) for value in range(0x80))


def _head(number: int, size: int) -> bytes:
    """Return what stands before so many bytes of a field's value; its number is 1 to 15."""
    if size < 0x80:  # noqa: PLR2004  one byte
        return bytes((number << 3 | BYTES, size))
    return _SHORT[number << 3 | BYTES] + write_varint(size)


def write_bytes(number: int, value: bytes) -> bytes:
    """Return a field of bytes, text or a message; its number is 1 to 15."""
    return _head(number, len(value)) + value


MOST_PIECE: Final = 62_000
"""Bytes of a body in one answer.

Source: the endpoint picker protocol's implementations; gateways take answers up to 64 KiB.
"""

Kind = Literal["request", "response"]
_HEADERS: Final = {"request": 1, "response": 2}
_BODY: Final = {"request": 3, "response": 4}
_TRAILERS: Final = {"request": 5, "response": 6}
_IMMEDIATE: Final = 7

_METADATA: Final = 8
_SHORT_OPTION: Final = 0x78
"""Bytes of a header's name and value below which all lengths around them are of one byte."""
_VALUE_HEADS: Final = tuple(_head(3, size) for size in range(_SHORT_OPTION))

_OVERWRITE: Final = write_varint(3 << 3 | VARINT) + write_varint(2)
"""HeaderValueOption.append_action = OVERWRITE_IF_EXISTS_OR_ADD."""

_CLEAR: Final = write_varint(5 << 3 | VARINT) + b"\1"
"""CommonResponse.clear_route_cache."""

_END: Final = write_varint(2 << 3 | VARINT) + b"\1"
"""StreamedBodyResponse.end_of_stream."""

_ENDPOINT: Final = ENDPOINT.encode()
_NOTHING: Final[Headers] = ()


def _option(name: bytes, value: bytes) -> bytes:
    """Return the field of a HeaderMutation that sets a header, in place of all of the same name."""
    size = len(name) + len(value)
    if size < _SHORT_OPTION:  # a third of the time of what follows
        head = bytes((0x0A, size + 8, 0x0A, size + 4, 0x0A, len(name)))
        return b"".join((head, name, _VALUE_HEADS[len(value)], value, _OVERWRITE))
    return write_bytes(1, write_bytes(1, write_bytes(1, name) + write_bytes(3, value)) + _OVERWRITE)


@lru_cache(1024)
def _named(endpoint: bytes) -> tuple[bytes, bytes]:
    """Return the option and the field of dynamic metadata that name an endpoint, the latter
    {"envoy.lb": {ENDPOINT: endpoint}} as Structs of Values.
    """
    fields = write_bytes(1, write_bytes(1, _ENDPOINT) + write_bytes(2, write_bytes(3, endpoint)))
    entry = write_bytes(1, b"envoy.lb") + write_bytes(2, write_bytes(5, fields))
    return _option(_ENDPOINT, endpoint), write_bytes(_METADATA, write_bytes(1, entry))


def _pick(
    field: int, headers: Headers, removed: Sequence[bytes], endpoint: bytes, body: bytes | None
) -> bytes:
    """Return an answer that names an endpoint, and has the route chosen anew."""
    option, metadata = _named(endpoint)
    parts = [option, *[_option(name, value) for name, value in headers]]
    parts += [write_bytes(2, name) for name in removed]
    common = write_bytes(2, b"".join(parts)) + _CLEAR
    if body is not None:
        common += write_bytes(3, write_bytes(1, body))
    return write_bytes(field, write_bytes(1, common)) + metadata


@lru_cache(1024)
def _piece_head(field: int, size: int, behind: int) -> bytes:
    """Return what stands before so many bytes of a piece of a body, with `behind` more bytes."""
    head = _head(1, size) if size else b""
    for number in (3, 3, 1, field):
        head = _head(number, len(head) + size + behind) + head
    return head


def _piece(field: int, data: bytes, *, end: bool) -> bytes:
    """Return the answer that streams a piece of a body on."""
    behind = _END if end else b""
    return b"".join((_piece_head(field, len(data), len(behind)), data, behind))


def pick_answer(headers: Headers, removed: Sequence[bytes], endpoint: bytes) -> bytes:
    """Return the answer to a request's headers that says where it goes.

    `endpoint` is `ip:port`, alternatives behind it in order: `ip:port,ip:port`. `headers` replace
    those of the same name, `removed` are taken off.
    """
    return _pick(_HEADERS["request"], headers, removed, endpoint, None)


def pick_body_answer(
    headers: Headers, removed: Sequence[bytes], endpoint: bytes, body: bytes | None
) -> bytes:
    """Return the same as the answer to a buffered body, which `body` replaces if it is given."""
    return _pick(_BODY["request"], headers, removed, endpoint, body)


def headers_answer(kind: Kind, headers: Headers = _NOTHING) -> bytes:
    """Return the answer that lets headers go on, with `headers` in place of those of the same
    name.
    """
    mutation = b"".join([_option(*one) for one in headers])
    common = write_bytes(1, write_bytes(2, mutation)) if mutation else b""
    return write_bytes(_HEADERS[kind], common)


def body_answers(kind: Kind, data: bytes, *, end: bool) -> Iterable[bytes]:
    """Return the answers that stream a body, or a piece of one, on: at most `MOST_PIECE` in each.

    Those of a long one are made when they are asked for.
    """
    if len(data) <= MOST_PIECE:
        return (_piece(_BODY[kind], data, end=end),)
    return _pieces(_BODY[kind], data, end=end)


def _pieces(field: int, data: bytes, *, end: bool) -> Iterator[bytes]:
    whole = memoryview(data)
    for at in range(0, len(data), MOST_PIECE):
        last = end and at + MOST_PIECE >= len(data)
        yield _piece(field, bytes(whole[at : at + MOST_PIECE]), end=last)


def body_passed(kind: Kind) -> bytes:
    """Return the answer that lets a piece of a body go on that is not streamed both ways."""
    return write_bytes(_BODY[kind], b"")


def trailers_answer(kind: Kind) -> bytes:
    """Return the answer that lets trailers go on."""
    return write_bytes(_TRAILERS[kind], b"")


def immediate(status: int, headers: Headers, body: bytes, details: str = "") -> bytes:
    """Return the answer that the gateway sends its client at once, in place of any other.

    `details` is for the gateway's access log.
    """
    inner = write_bytes(1, write_varint(1 << 3 | VARINT) + write_varint(status))
    mutation = b"".join([_option(*one) for one in headers])
    if mutation:
        inner += write_bytes(2, mutation)
    if body:
        inner += write_bytes(3, body)
    if details:
        inner += write_bytes(5, details.encode())
    return write_bytes(_IMMEDIATE, inner)
