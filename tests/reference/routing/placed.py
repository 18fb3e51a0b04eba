"""The naive model of kvmesh/native/peers/placed_record.c."""

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

from kvmesh._native import Booking
from kvmesh.core.blocks.graded import grade, graded_count, graded_depth, key_count, key_depth
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.routing.peers.records import (
    BELIEVED,
    MOST_GRADED,
    PLACED,
    PLACED_FORM,
    STREAMS,
    TURN,
)
from kvmesh.core.routing.unwatched.unwatched import expected_blocks

MOST_BLOCKS: Final = graded_depth(MOST_GRADED)
"""Of a longer prompt as much is told as of one of so many blocks."""

NUMBERS: Final = Struct("<II")
"""The booking's and the worker's number in the record, from byte `NUMBERS_AT` on."""

NUMBERS_AT: Final = 4

_U32: Final = (1 << 32) - 1


def placed_record(booking: Booking, block_size: int) -> bytearray:
    """Return the record of a booking as it was placed, its `NUMBERS` 0; what came of it follows in
    records of its own.

    Numbers too large count as the largest. Raises `RequestError` for a token that is no u32.
    """
    graded, blocks = _graded(booking, block_size)
    flags = STREAMS * booking.streams | TURN * booking.turn
    if booking.hashes is not None and not isinstance(booking.hashes, bytes):
        flags |= BELIEVED
    record = bytearray(
        PLACED_FORM.pack(
            PLACED,
            flags,
            len(graded),
            0,
            0,
            blocks,
            _u32(booking.prompt_tokens),
            _u32(booking.uncached_tokens),
            _u32(expected_blocks(booking, block_size)),
            0,
        )
    )
    return record + pack_hashes(graded)


def _graded(booking: Booking, block_size: int) -> tuple[Sequence[int], int]:
    """Return the graded hashes of a booking's prompt, and how many blocks it has.

    Of a prompt that is not believed cached only the sharing keys are known, and 0 for the others.
    """
    hashes = booking.hashes
    if hashes is not None and not isinstance(hashes, bytes):
        blocks = min(hashes.blocks, MOST_BLOCKS)
        return grade(hashes.upto(blocks), blocks), blocks
    keys = booking.keys
    blocks = max(-(-booking.prompt_tokens // block_size), key_depth(len(keys)))
    blocks = min(blocks, MOST_BLOCKS)
    count = min(len(keys), key_count(blocks))
    graded = array("Q", bytes(8 * graded_count(key_depth(count))))
    for number, key in enumerate(keys[:count], 1):
        graded[graded_count(key_depth(number)) - 1] = key
    return graded, blocks


def _u32(amount: int) -> int:
    return min(max(0, amount), _U32)
