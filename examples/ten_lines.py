"""kvmesh from Python in ten lines each: a router as a library, a client, the same with asyncio.

Usage: ten_lines.py [URL]
"""

import asyncio
import random
import sys

from kvmesh import AsyncClient, Client, KvRouter

CHAT = {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello! " * 40}]}


def route_in_process() -> None:
    """Decide where prompts go, without a server: it believes what it has routed."""
    router = KvRouter(random.Random(7), use_kv_events=False)  # noqa: S311 - draws among equals
    for worker in ("gpu-0", "gpu-1"):
        router.add_worker(worker, now=0.0)
    prompt = list(range(64))
    first = router.find_best_match("r1", prompt, now=0.0)
    router.free("r1", now=1.0)
    again = router.find_best_match("r2", prompt, now=2.0)
    print("library", again.worker_id == first.worker_id, again.overlap_blocks, "blocks cached")


def ask(url: str) -> None:
    """Send a chat and say where it went."""
    with Client(url) as client:
        answer = client.kv(CHAT)
        print("client ", answer.worker_id, answer.overlap_blocks, "blocks cached")


async def ask_async(url: str) -> None:
    """Do the same with asyncio."""
    async with AsyncClient(url) as client:
        answer = await client.kv(CHAT)
        print("asyncio", answer.worker_id, answer.overlap_blocks, "blocks cached")


if __name__ == "__main__":
    at = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    route_in_process()
    ask(at)
    asyncio.run(ask_async(at))
