"""What replicas are told of a booking when it is placed, besides what it says itself."""

from kvmesh._native import Booking


def expected_blocks(booking: Booking, block_size: int) -> int:
    """Return the blocks of output that were expected when the booking was placed."""
    end = booking.prompt_tokens + booking.output_tokens
    grown = -(-end // block_size) + (-booking.prompt_tokens // block_size)
    return max(0, booking.expected_blocks + grown + booking.foreseen_blocks)
