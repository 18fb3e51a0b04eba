"""The naive model of kvmesh/native/wire/extproc_read.c: a gateway's messages out of their bytes."""

from collections.abc import Iterator
from struct import unpack_from
from typing import Final

from kvmesh.errors import CodecError
from kvmesh.transport.extproc.messages import (
    KINDS,
    SERVED,
    SUBSET,
    Attribute,
    GatewayMessage,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from kvmesh.transport.extproc.writing import BYTES, VARINT
from kvmesh.transport.http.wire.headers import Header
from tests.reference.transport.fields import FIXED64, LB_NAMESPACE, SUBSET_NAMESPACE, read_fields

_FIRST_KIND: Final = 2
_LAST_KIND: Final = _FIRST_KIND + len(KINDS) - 1
_METADATA: Final = 8
_ATTRIBUTES: Final = 9
_MODES: Final = 11

Span = tuple[int, int]


def decode(data: bytes) -> GatewayMessage:
    """Return what `kvmesh.transport.extproc.messages.decode` does."""
    kind, span = 0, (0, 0)
    beside = _Beside()
    for number, wire, start, end in read_fields(data, 0, len(data)):
        if wire == BYTES and _FIRST_KIND <= number <= _LAST_KIND:
            kind, span = number, (start, end)
        elif wire == BYTES:
            beside.take(data, number, start, end)
    if not kind:
        raise CodecError(f"a message of {len(data)} bytes has neither headers nor body: skip it")
    found = KINDS[kind - _FIRST_KIND]
    if found is RequestBody or found is ResponseBody:
        return found(*_body(data, span))
    if found is RequestTrailers or found is ResponseTrailers:
        return found(_trailers(data, span))
    headers, ended = _head(data, span)
    if found is RequestHeaders:
        return RequestHeaders(headers, ended, beside.subset, beside.modes, beside.attributes)
    return ResponseHeaders(headers, ended, beside.served, beside.attributes)


class _Beside:
    """What a message tells beside its headers or body."""

    def __init__(self) -> None:
        self.subset: tuple[str, ...] | None = None
        self.served = ""
        self.modes: Modes | None = None
        self.attributes: dict[str, Attribute] | None = None

    def take(self, data: bytes, number: int, start: int, end: int) -> None:
        """Take a field of the message."""
        if number == _METADATA:
            self.subset, self.served = _metadata(data, start, end, self.subset, self.served)
        elif number == _ATTRIBUTES:
            self.attributes = self.attributes or {}
            _attributes(data, start, end, self.attributes)
        elif number == _MODES:
            self.modes = _read_modes(data, start, end)


def _body(data: bytes, span: Span) -> tuple[bytes, bool]:
    """Return the bytes of a HttpBody, and whether it is the last."""
    body, ended = b"", False
    for number, wire, start, end in read_fields(data, *span):
        if number == 1 and wire == BYTES:
            body = data[start:end]
        elif number in (2, 3) and wire == VARINT:
            ended = ended or bool(start)
    return body, ended


def _head(data: bytes, span: Span) -> tuple[list[Header], bool]:
    """Return the headers of a HttpHeaders, and whether nothing follows."""
    headers: list[Header] = []
    ended = False
    for number, wire, start, end in read_fields(data, *span):
        if number == 1 and wire == BYTES:
            headers = _headers(data, start, end)
        elif number == 3 and wire == VARINT:
            ended = bool(start)
    return headers, ended


def _trailers(data: bytes, span: Span) -> list[Header]:
    headers: list[Header] = []
    for number, wire, start, end in read_fields(data, *span):
        if number == 1 and wire == BYTES:
            headers = _headers(data, start, end)
    return headers


def _headers(data: bytes, at: int, end: int) -> list[Header]:
    """Return a HeaderMap; a value is in `raw_value`, else in `value`."""
    headers: list[Header] = []
    for number, wire, start, stop in read_fields(data, at, end):
        if number != 1 or wire != BYTES:
            continue
        name = value = raw = b""
        for part, kind, begins, ends in read_fields(data, start, stop):
            if kind != BYTES:
                continue
            if part == 1:
                name = data[begins:ends]
            elif part == 2:
                value = data[begins:ends]
            elif part == 3:
                raw = data[begins:ends]
        headers.append((name.lower(), raw or value))
    return headers


def _read_modes(data: bytes, at: int, end: int) -> Modes:
    request = response = 0
    for number, wire, value, _ in read_fields(data, at, end):
        if wire == VARINT and number == 1:
            request = min(value, 0xFF)
        elif wire == VARINT and number == 2:
            response = min(value, 0xFF)
    return Modes(request, response)


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, Span]:
    """Return key and value of an entry of a map."""
    key, value = b"", (0, 0)
    for number, wire, start, stop in read_fields(data, at, end):
        if wire == BYTES and number == 1:
            key = data[start:stop]
        elif wire == BYTES and number == 2:
            value = start, stop
    return key, value


def _metadata(
    data: bytes, at: int, end: int, subset: tuple[str, ...] | None, served: str
) -> tuple[tuple[str, ...] | None, str]:
    """Return the endpoints that may be picked, and the one that served, of a Metadata."""
    for number, wire, start, stop in read_fields(data, at, end):
        if number != 1 or wire != BYTES:
            continue
        namespace, span = _entry(data, start, stop)
        if namespace == SUBSET_NAMESPACE.encode():
            for key, value in _struct(data, span):
                if key == SUBSET.encode():
                    subset = tuple(_texts(data, value))
        elif namespace == LB_NAMESPACE.encode():
            for key, value in _struct(data, span):
                if key == SERVED.encode():
                    served = next(iter(_texts(data, value)), "")
    return subset, served


def _struct(data: bytes, span: Span) -> Iterator[tuple[bytes, Span]]:
    """Yield the fields of a google.protobuf.Struct."""
    for number, wire, start, end in read_fields(data, *span):
        if number == 1 and wire == BYTES:
            yield _entry(data, start, end)


def _texts(data: bytes, span: Span) -> list[str]:
    """Return the texts of a Value: a list's, or those of one text, which commas separate."""
    found: list[str] = []
    for number, wire, start, end in read_fields(data, *span):
        if wire == BYTES and number == 3:
            found = _split(data[start:end])
        elif wire == BYTES and number == 6:
            found = []
            for part, kind, begins, ends in read_fields(data, start, end):
                text = _value(data, begins, ends) if part == 1 and kind == BYTES else None
                if isinstance(text, bytes):
                    found += _split(text)
    return found


def _split(text: bytes) -> list[str]:
    return [word.decode(errors="replace") for one in text.split(b",") if (word := one.strip(b" "))]


def _value(data: bytes, at: int, end: int) -> bytes | float | bool | None:
    """Return the text, number or bool of a Value; None for any other."""
    found: bytes | float | bool | None = None
    for number, wire, start, stop in read_fields(data, at, end):
        if number == 3 and wire == BYTES:
            found = data[start:stop]
        elif number == 2 and wire == FIXED64:
            (found,) = unpack_from("<d", data, start)
        elif number == 4 and wire == VARINT:
            found = bool(start)
    return found


def _attributes(data: bytes, at: int, end: int, found: dict[str, Attribute]) -> None:
    """Add the attributes of one entry, whoever they are of."""
    _, span = _entry(data, at, end)
    for key, place in _struct(data, span):
        value = _value(data, *place)
        if isinstance(value, bytes):
            found[key.decode(errors="replace")] = value.decode(errors="replace")
        elif value is not None:
            found[key.decode(errors="replace")] = value
