"""Naive model of how kvmesh/native/wire/extproc_read.c reads the fields of a protobuf message."""

from collections.abc import Iterator
from typing import Final

from kvmesh.errors import CodecError
from kvmesh.transport.extproc.writing import BYTES, VARINT

LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
"""Where metadata of the endpoint picker protocol is."""

FIXED64: Final = 1
FIXED32: Final = 5
_WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_MOST_SHIFT: Final = 63
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_MOST_NUMBER: Final = 0x1FFF_FFFF

Field = tuple[int, int, int, int]
"""Number, wire type, where its value begins, where it ends; of a VARINT its value, and 0."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at `at`, modulo 2^64, and where it ends. Raises `CodecError`."""
    value = shift = 0
    while at < end and shift <= _MOST_SHIFT:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & _WORD, at
        shift += 7
    raise CodecError(f"byte {at}: a number that does not end")


def read_fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in `data[at:end]`, in order. Raises `CodecError`."""
    while at < end:
        tag, after = read_varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MOST_NUMBER:
            raise CodecError(f"byte {at}: field number {number} is none")
        if wire == VARINT:
            value, at = read_varint(data, after, end)
            yield number, wire, value, 0
            continue
        if wire == BYTES:
            size, after = read_varint(data, after, end)
        elif wire in _WIDTHS:
            size = _WIDTHS[wire]
        else:
            raise CodecError(f"byte {at}: wire type {wire} is not known")
        if size > end - after:
            raise CodecError(f"byte {at}: field {number} is longer than its message")
        at = after + size
        yield number, wire, after, at
