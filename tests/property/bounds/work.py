"""How the cost of an input grows: ten times the input, about ten times the processor time."""

import time
from collections.abc import Callable
from typing import Final

TIMES: Final = 10
MOST: Final = 25.0
"""A quadratic decoder takes 100 times as long; a busy machine makes 10 times seem 16."""
FLOOR_S: Final = 0.002
"""A shorter run is noise: the ratio is taken of at least this."""
ATTEMPTS: Final = 5


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def assert_linear(make: Callable[[int], Callable[[], object]], size: int) -> None:
    """Assert that the work of `make(10 * size)` costs at most 25 times that of `make(size)`.

    `make` prepares an input of a size, untimed, and returns the work on it. Both are measured in
    turns until the least of each fit, five times at most.
    """
    small = big = float("inf")
    for _ in range(ATTEMPTS):
        small = min(small, _seconds(make(size)))
        big = min(big, _seconds(make(TIMES * size)))
        if big <= MOST * max(small, FLOOR_S):
            return
    raise AssertionError(f"{size}: {small:.4f} s, {TIMES} times as much: {big:.4f} s")
