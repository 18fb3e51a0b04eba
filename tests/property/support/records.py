"""Booking records written by hand: what their readers are tried with."""

from collections.abc import Sequence
from struct import pack

import msgspec

from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.hashing import pack_hashes

_encoder = msgspec.msgpack.Encoder()


def message(
    *records: bytes,
    epoch: int = 1,
    first_seq: int = 1,
    events: int | None = None,
    shares: Shares | None = None,
    tail: bytes | None = None,
) -> bytes:
    """Return a message of these records; `events` and `tail` may say what is not so."""
    behind = _encoder.encode(shares) if shares is not None else tail
    count = len(records) if events is None else events
    head = pack("<BBHIQQ", 1, behind is not None, 0, count, epoch, first_seq)
    return head + b"".join(records) + (behind or b"")


def placed(
    number: int,
    worker: int,
    amounts: tuple[int, int, int, int],
    graded: Sequence[int] = (),
    *,
    flags: int = 3,
) -> bytes:
    """Return a booking; `amounts`: blocks, prompt tokens, uncached tokens, expected blocks;
    `flags`: 1 streams, 2 believed, 4 in turn.
    """
    form = pack("<BBHIIIIIII", 0, flags, len(graded), number, worker, *amounts, 0)
    return form + pack_hashes(graded)


def bare(kind: int, number: int = 0) -> bytes:
    """Return a record of 8 bytes: 1 prefilled, 3 ended."""
    return pack("<B3xI", kind, number)


def grew(number: int, output_tokens: int) -> bytes:
    """Return that an output has so many tokens in total."""
    return pack("<B3xIQ", 2, number, output_tokens)


def state_begins() -> bytes:
    """Return that all bookings follow."""
    return bare(4)


def state_ends() -> bytes:
    """Return that all bookings were told."""
    return bare(5)


def failed(
    number: int,
    verdict: int,
    kind: str | bytes = "",
    lost_s: float = 0.0,
    retry_after_s: float = 0.0,
) -> bytes:
    """Return an end that was not served."""
    text = kind.encode() if isinstance(kind, str) else kind
    form = pack("<BBBxIdd", 6, verdict, len(text), number, lost_s, retry_after_s)
    return form + _padded(text)


def named(worker: int, name: str | bytes) -> bytes:
    """Return what a worker is called."""
    text = name.encode() if isinstance(name, str) else name
    return pack("<BxHI", 7, len(text), worker) + _padded(text)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % 8)
