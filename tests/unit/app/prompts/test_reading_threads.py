"""Tests of where large bodies are read."""

import asyncio
import threading

from kvmesh.app.prompts.reading_threads import HEAVY_BYTES, HEAVY_ITEMS, ReadingThreads
from kvmesh.transport.http.server.request import Request


def request(size: int = 1, items: int = 0) -> Request:
    made = Request("POST", b"/v1/completions", [], b" " * size)
    made.items = items
    return made


async def test_the_largest_bodies_are_read_one_at_a_time() -> None:
    threads = ReadingThreads()
    inside = threading.Semaphore(1)

    def read() -> str:
        assert inside.acquire(blocking=False), "two at once"
        try:
            return threading.current_thread().name
        finally:
            inside.release()

    heavy = [request(HEAVY_BYTES + 1), request(items=HEAVY_ITEMS + 1)] * 10
    names = await asyncio.gather(*(threads.run(one, read) for one in heavy))

    assert len(set(names)) == 1
    assert threading.current_thread().name not in names


async def test_others_do_not_wait_for_the_largest() -> None:
    threads = ReadingThreads()
    done = threading.Event()
    heavy = asyncio.ensure_future(threads.run(request(HEAVY_BYTES + 1), lambda: done.wait(10)))

    assert await asyncio.wait_for(threads.run(request(), lambda: "read"), 10) == "read"
    assert not heavy.done()
    done.set()
    assert await heavy
