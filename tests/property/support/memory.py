"""Work after which the memory that it took is there again."""

import gc
import tracemalloc
from collections.abc import Callable

MOST_LEFT = 10_000
"""Bytes: less than what one of the things that are made would leave."""


def assert_gives_back(live: Callable[[], object], times: int = 1) -> None:
    """Hold that `live`, done once before, leaves no memory behind however often it is done."""
    live()
    gc.collect()
    tracemalloc.start()
    try:
        live()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            live()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert after - before < MOST_LEFT
