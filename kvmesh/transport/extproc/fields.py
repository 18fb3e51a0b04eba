"""The fields of a protobuf message, as they stand in its bytes."""

from collections.abc import Iterator
from typing import Final

from kvmesh.errors import CodecError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
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
        if byte < 0x80:  # noqa: PLR2004  the bit that says "more follows"
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
