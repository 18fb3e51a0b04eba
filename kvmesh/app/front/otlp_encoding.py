"""OTLP's protobuf, written by hand: a span of 15 attributes in 8 us, where Python's protobuf takes
46 and OpenTelemetry's SDK 150.

Source: opentelemetry-proto, opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from kvmesh.errors import CodecError

Value = str | bool | int | float
Attributes = Sequence[tuple[str, Value]]

MOST_TEXT: Final = 2048
"""Characters of one text; what is longer is cut."""

SERVER: Final = 2
"""Span.SpanKind.SPAN_KIND_SERVER"""

_FIXED: Final = Struct("<Q").pack
_DOUBLE: Final = Struct("<d").pack
_U64: Final = (1 << 64) - 1
_ERROR: Final = b"\x18\x02"
"""Status.code = STATUS_CODE_ERROR"""


def _long(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004  seven bits a byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final = [_long(number) for number in range(4096)]


def varint(number: int) -> bytes:
    """Return a number of 0 to 2**64 - 1 as protobuf writes it."""
    return _SHORT[number] if number < 4096 else _long(number)  # noqa: PLR2004  len(_SHORT)


def field(tag: bytes, content: bytes) -> bytes:
    """Return a field of bytes, a text or a message."""
    return b"".join((tag, varint(len(content)), content))


def text(value: str) -> bytes:
    """Return a text as UTF-8, cut to `MOST_TEXT` characters; half a surrogate pair becomes `?`."""
    return value[:MOST_TEXT].encode("utf-8", "replace")


@lru_cache(maxsize=1024)
def _key(name: str) -> bytes:
    """Return KeyValue.key and the tag of its value: the same few names come again and again."""
    return field(b"\x0a", text(name)) + b"\x12"


def attribute(tag: bytes, name: str, value: Value) -> bytes:
    """Return a KeyValue as the field `tag`."""
    match value:
        case str():
            value_bytes = field(b"\x0a", text(value))
        case bool():
            value_bytes = b"\x10\x01" if value else b"\x10\x00"
        case int():
            value_bytes = b"\x18" + varint(value & _U64)
        case _:
            value_bytes = b"\x21" + _DOUBLE(value)
    key = _key(name)
    size = varint(len(value_bytes))
    whole = varint(len(key) + len(size) + len(value_bytes))
    return b"".join((tag, whole, key, size, value_bytes))


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened within a span; `at_ns` is a Unix time."""

    at_ns: int
    name: str
    attributes: tuple[tuple[str, Value], ...] = ()


class SpanData(msgspec.Struct, frozen=True, gc=False):
    """One span of kind server. Ids are raw bytes, `parent_id` b"" for a root; times are Unix
    times in ns; `error` is why it failed, None where it did not.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: Sequence[Event] = ()
    error: str | None = None


def encode_span(span: SpanData) -> bytes:
    """Return a span as an entry of ScopeSpans.spans."""
    parts = [
        field(b"\x0a", span.trace_id),
        field(b"\x12", span.span_id),
        field(b"\x22", span.parent_id) if span.parent_id else b"",
        field(b"\x2a", text(span.name)),
        b"\x30\x02\x39",
        _FIXED(span.start_ns & _U64),
        b"\x41",
        _FIXED(span.end_ns & _U64),
    ]
    parts += [attribute(b"\x4a", name, value) for name, value in span.attributes]
    parts += [_event(one) for one in span.events]
    if span.error is not None:
        parts.append(field(b"\x7a", field(b"\x12", text(span.error)) + _ERROR))
    return field(b"\x12", b"".join(parts))


def _event(event: Event) -> bytes:
    parts = [b"\x09", _FIXED(event.at_ns & _U64), field(b"\x12", text(event.name))]
    parts += [attribute(b"\x1a", name, value) for name, value in event.attributes]
    return field(b"\x5a", b"".join(parts))


class Envelope:
    """What is around the spans of one process: who they are of."""

    def __init__(self, resource: Attributes, scope: str, version: str) -> None:
        attributes = b"".join(attribute(b"\x0a", name, value) for name, value in resource)
        who = field(b"\x0a", text(scope)) + field(b"\x12", text(version))
        self._resource = field(b"\x0a", attributes)
        self._scope = field(b"\x0a", who)

    def request(self, spans: Iterable[bytes]) -> bytes:
        """Return an ExportTraceServiceRequest with what `encode_span` returned."""
        inside = field(b"\x12", self._scope + b"".join(spans))
        return field(b"\x0a", self._resource + inside)


def rejected_spans(answer: bytes) -> tuple[int, str]:
    """Return how many spans a collector's ExportTraceServiceResponse rejects, and why.

    Raises `CodecError` for what is none.
    """
    rejected, why = 0, ""
    for number, content in _fields(answer):
        if number == 1 and isinstance(content, bytes):
            for inner, value in _fields(content):
                if inner == 1 and isinstance(value, int):
                    rejected = value if value < 1 << 63 else 0
                elif inner == 2 and isinstance(value, bytes):  # noqa: PLR2004  error_message
                    why = value[:MOST_TEXT].decode("utf-8", "replace")
    return rejected, why


def _fields(data: bytes) -> list[tuple[int, int | bytes]]:
    found: list[tuple[int, int | bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        match tag & 7:
            case 0:
                value, at = _read_varint(data, at)
                found.append((tag >> 3, value))
                continue
            case 1:
                size = 8
            case 2:
                size, at = _read_varint(data, at)
            case 5:
                size = 4
            case kind:
                raise CodecError(f"byte {at} of an OTLP answer: wire type {kind}")
        if at + size > len(data):
            raise CodecError(
                f"byte {at} of an OTLP answer: {size} bytes, {len(data) - at} are left"
            )
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for byte in data[at : at + 10]:
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:  # noqa: PLR2004  the last byte
            return number & _U64, at
        shift += 7
    raise CodecError(f"byte {at} of an OTLP answer: a number that does not end")
