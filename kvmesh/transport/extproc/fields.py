"""The fields of a protobuf message, as they stand in its bytes."""

from typing import Final

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
