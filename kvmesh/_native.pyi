"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. `tests/unit/test_native_stub.py`
holds this file to the module.
"""

from collections.abc import Sequence
from typing import Any, Final

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""

# ---- transport: heads, HTTP/1 requests, HTTP/2, ext_proc, ends of requests ----

# ---- index: table, beliefs, hash chains ----

def chain(
    seed: int, packed: bytes | bytearray | memoryview, start: int, width: int, count: int, /
) -> list[int]:
    """Return the hashes of `count` blocks of `width` bytes from byte `start` of a buffer on, each
    seeded with the one before, the first with `seed` modulo 2^64.

    Raises `ValueError` when they do not fit. About 25 ns a block of 64 bytes.
    """

def chain_tokens(
    seed: int, tokens: Sequence[int], first: int, size: int, count: int, /
) -> bytes | None:
    """Return the hashes of `count` blocks of `size` tokens from token `first` on, as native u64s.

    None, for someone else to look closer, when `tokens` are no list or tuple, too few, or one of
    them is no plain int from 0 to 2^32 - 1. About 2 ns a token.
    """

def pack_chain(
    seed: int, tokens: bytes | bytearray | memoryview | str, first: int, size: int, count: int, /
) -> bytes:
    """Return the same of a buffer of u32s, or of a string: its code points.

    Raises `ValueError` when there are fewer. About 10 ns a block of 16 tokens.
    """

def pack_u64s(hashes: Sequence[int], /) -> bytes | None:
    """Return a list or tuple of ints as native u64s.

    None, for someone else to look closer, when it is neither, or one of them is no plain int from
    0 to 2^64 - 1. About 2 ns a hash.
    """

# ---- engines and prompts: engines' caches, event streams, bodies, texts ----

# ---- workers and routing: loads, bookings, speeds, lengths, replicas' bookings ----

# ---- insight: records, totals, histograms ----

# ---- decision: formulas, courses, the decider ----

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  until all of them stand above
