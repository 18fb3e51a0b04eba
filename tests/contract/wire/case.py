"""One value of a format, with its writer and reader, and what the values are made of."""

from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId


class WireCase(msgspec.Struct, frozen=True):
    """A value of one format: `read(write())` is `value`."""

    write: Callable[[], bytes]
    read: Callable[[bytes], object]
    value: object


WORKER: Final = WorkerId("w0-dp1")
EPOCH: Final = 1_700_000_000_123
HASHES: Final = [0x0123456789ABCDEF, 1, 2**64 - 1, 0xC0FFEE]
LAST: Final = HASHES[-1]
CREATED: Final = "2026-11-22T20:01:02.123456789Z"
