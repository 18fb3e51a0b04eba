"""What gateways tell a picker: it is read, or refused as no message of theirs."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kvmesh.errors import CodecError
from kvmesh.transport.grpc.extproc_messages import decode
from kvmesh.transport.grpc.extproc_writing import write_bytes


def extproc(data: bytes) -> None:
    """Read a message, and the same with its end cut off."""
    for size in (len(data), len(data) // 2):
        with suppress(CodecError):
            decode(data[:size])


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"extproc": extproc}

_SUBSET: Final = b"x-gateway-destination-endpoint-subset"
_SERVED: Final = b"x-gateway-destination-endpoint-served"


def _struct(key: bytes, value: bytes) -> bytes:
    return write_bytes(1, write_bytes(1, key) + write_bytes(2, value))


def seeds(target: str) -> Iterator[bytes]:
    """Yield a message of each kind, and of all that stands beside one."""
    del target
    header = write_bytes(1, write_bytes(1, b"X-A") + write_bytes(2, b"v") + write_bytes(3, b"raw"))
    head = write_bytes(1, header) + b"\x18\x01"
    listed = write_bytes(6, write_bytes(1, write_bytes(3, b"10.0.0.1:80, 10.0.0.2:80")))
    subset = write_bytes(1, b"envoy.lb.subset_hint") + write_bytes(2, _struct(_SUBSET, listed))
    served = write_bytes(3, b"10.0.0.1:80")
    lb = write_bytes(1, b"envoy.lb") + write_bytes(2, _struct(_SERVED, served))
    number = _struct(b"response.flags", b"\x11" + b"\x00" * 6 + b"\xf0\x3f")
    flag = _struct(b"a", b"\x20\x01")
    attributes = write_bytes(9, write_bytes(1, b"f") + write_bytes(2, number + flag))
    modes = write_bytes(11, b"\x08\x04\x10\x04")
    yield write_bytes(2, head) + modes + write_bytes(8, write_bytes(1, subset)) + attributes
    yield write_bytes(3, head) + write_bytes(8, write_bytes(1, lb)) + attributes
    yield write_bytes(4, write_bytes(1, b"{}") + b"\x10\x01")
    yield write_bytes(5, write_bytes(1, b"data: 1\n\n") + b"\x18\x01")
    yield write_bytes(6, write_bytes(1, header))
    yield write_bytes(7, write_bytes(1, header)) + b"\x50\x01\x6d\x00\x00\x00\x00"
