"""What one front door takes from its clients at most."""

from typing import Final

import msgspec

COUNT_ABOVE: Final = 32 * 1024
"""Bytes of a body above which its values are counted: those of a smaller one take 10 ms at most."""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of an HTTP server. Timeouts are exact to about half a second.

    `max_body_items`, `max_body_depth`: what a JSON object in a body may hold, counted as it arrives
    (`core.prompts.json_size`) once it is larger than `COUNT_ABOVE`; more is answered 413.
    `max_total_body_bytes`: bodies of all connections together, until their answers begin; a
    request beyond it is answered 503.
    `header_timeout_s`: a request's head must be whole this long after its first byte.
    `body_window_s`, `min_body_bytes_per_s`: in each window a body must grow at that rate, and by a
    quarter of itself while more than half of `max_total_body_bytes` is in use.
    `write_stall_s`: a client that takes nothing of a waiting answer for so long is cut off.
    `write_buffer_bytes`: above it `on_pause` is called, below a quarter of it `on_resume`.
    """

    max_connections: int = 16_384
    max_header_bytes: int = 64 * 1024
    max_headers: int = 128
    max_target_bytes: int = 8 * 1024
    max_body_bytes: int = 64 * 1024**2
    max_body_items: int = 1 << 18
    max_body_depth: int = 256
    max_total_body_bytes: int = 1024**3
    max_pipelined: int = 64
    header_timeout_s: float = 10.0
    body_window_s: float = 15.0
    min_body_bytes_per_s: int = 240
    idle_timeout_s: float = 75.0
    write_stall_s: float = 120.0
    linger_s: float = 2.0
    write_buffer_bytes: int = 64 * 1024


class BodyBudget:
    """Bytes of request bodies held in memory, from their arrival until nobody needs them."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def tight(self) -> bool:
        """Return whether more than half of it is in use."""
        return self.used > self.limit // 2

    @property
    def exceeded(self) -> bool:
        """Return whether more is held than allowed."""
        return self.used > self.limit
