"""Answers to a gateway, as bytes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from kvmesh._native import write_extproc, write_extproc_piece
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


def write_bytes(number: int, value: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    return b"".join((write_varint(number << 3 | BYTES), write_varint(len(value)), value))


MOST_PIECE: Final = 62_000
"""Bytes of a body in one answer.

Source: the endpoint picker protocol's implementations; gateways take answers up to 64 KiB.
"""

Kind = Literal["request", "response"]
_HEADERS: Final = {"request": 1, "response": 2}
_BODY: Final = {"request": 3, "response": 4}
_TRAILERS: Final = {"request": 5, "response": 6}
_IMMEDIATE: Final = 7

_OVERWRITE: Final = write_varint(3 << 3 | VARINT) + write_varint(2)
"""HeaderValueOption.append_action = OVERWRITE_IF_EXISTS_OR_ADD."""

_NOTHING: Final[Headers] = ()


def _mutation(headers: Headers) -> bytes:
    """Return the fields of a HeaderMutation that sets headers, in place of all of the same name."""
    parts = [
        write_bytes(1, write_bytes(1, write_bytes(1, name) + write_bytes(3, value)) + _OVERWRITE)
        for name, value in headers
    ]
    return b"".join(parts)


def pick_answer(headers: Headers, removed: Sequence[bytes], endpoint: bytes) -> bytes:
    """Return the answer to a request's headers that says where it goes.

    `endpoint` is `ip:port`, alternatives behind it in order: `ip:port,ip:port`. `headers` replace
    those of the same name, `removed` are taken off.
    """
    return write_extproc(_HEADERS["request"], headers, removed, endpoint, None)


def pick_body_answer(
    headers: Headers, removed: Sequence[bytes], endpoint: bytes, body: bytes | None
) -> bytes:
    """Return the same as the answer to a buffered body, which `body` replaces if it is given."""
    return write_extproc(_BODY["request"], headers, removed, endpoint, body)


def headers_answer(kind: Kind, headers: Headers = _NOTHING) -> bytes:
    """Return the answer that lets headers go on, with `headers` in place of those of the same
    name.
    """
    return write_extproc(_HEADERS[kind], headers, (), None, None)


def body_answers(kind: Kind, data: bytes, *, end: bool) -> Iterable[bytes]:
    """Return the answers that stream a body, or a piece of one, on: at most `MOST_PIECE` in each.

    Those of a long one are made when they are asked for.
    """
    if len(data) <= MOST_PIECE:
        return (write_extproc_piece(_BODY[kind], data, end),)
    return _pieces(_BODY[kind], data, end=end)


def _pieces(field: int, data: bytes, *, end: bool) -> Iterator[bytes]:
    whole = memoryview(data)
    for at in range(0, len(data), MOST_PIECE):
        last = end and at + MOST_PIECE >= len(data)
        yield write_extproc_piece(field, bytes(whole[at : at + MOST_PIECE]), last)


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
    mutation = _mutation(headers)
    if mutation:
        inner += write_bytes(2, mutation)
    if body:
        inner += write_bytes(3, body)
    if details:
        inner += write_bytes(5, details.encode())
    return write_bytes(_IMMEDIATE, inner)
