"""KV blocks of answers that are not streamed: nobody sees their tokens, so growth is inferred."""

from collections.abc import Callable

import msgspec

from kvmesh._native import ActiveSequences, Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_depth


class UnseenWork(msgspec.Struct, frozen=True):
    """What is known of workers without looking: `ms_per_token` between two output tokens, 0 when
    nothing was learned; `used_blocks` by the engine's last report, None without a fresh one.
    """

    ms_per_token: Callable[[WorkerId], float]
    used_blocks: Callable[[WorkerId], int | None]


def grow_unseen(sequences: ActiveSequences, work: UnseenWork, now: float) -> None:
    """Let each answer that is not streamed have grown by the time since its prefill, at its
    worker's time per token, up to the output that is expected of it.

    An engine that uses fewer blocks than that says so: then all such answers there have grown in
    proportion to what it uses beyond the rest. That it uses more is load that nobody booked, as
    `WorkerRegistry.report` counts it. The same from the same arguments, however often and when
    it was called before. O(bookings), O(1) while all of them stream.
    """
    workers: dict[WorkerId, list[Booking]] = {}
    for booking in sequences.unseen():
        workers.setdefault(booking.worker, []).append(booking)
    for worker, growing in workers.items():
        _grow(sequences, work, now, worker, growing)


def _grow(
    sequences: ActiveSequences,
    work: UnseenWork,
    now: float,
    worker: WorkerId,
    growing: list[Booking],
) -> None:
    ms_per_token = work.ms_per_token(worker)
    due = [_due_blocks(one, sequences.block_size, ms_per_token, now) for one in growing]
    whole, used = sum(due), work.used_blocks(worker)
    room = whole
    if used is not None:
        loads = sequences.loads(worker)
        # The engine may not hold these yet.
        waiting = sum(
            one.private_blocks + key_depth(len(one.keys)) for one in loads.prefilling.values()
        )
        grown = sum(one.foreseen_blocks for one in growing)
        room = min(whole, max(0, used - (loads.booked_blocks - grown - waiting)))
    for booking, blocks in zip(growing, due, strict=True):
        sequences.foresee(booking, blocks * room // whole if whole else 0)


def _due_blocks(booking: Booking, block_size: int, ms_per_token: float, now: float) -> int:
    """Return the blocks that the booking should have grown by, at most those expected."""
    expected = booking.expected_blocks + booking.foreseen_blocks
    elapsed_ms = (now - booking.output_s) * 1000.0
    if ms_per_token <= 0.0 or elapsed_ms <= 0.0 or not expected:
        return 0
    tokens = int(min(elapsed_ms / ms_per_token, float(expected * block_size)))
    prompt = booking.prompt_tokens
    return -(-(prompt + tokens) // block_size) + (-prompt // block_size)
