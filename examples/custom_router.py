"""Route by a function of your own: what every worker holds, how busy it is, your decision.

The client decides, in two round trips: requests at the same time do not see each other. For a
function that runs in the router and books in the same turn see `my_cost.py`.

Usage: custom_router.py [URL]
"""

import asyncio
import sys

from kvmesh import AsyncClient, Metrics

QUESTION = "Say again, slowly, what a KV cache is good for. " * 30


def custom_router(matches: dict[str, int], metrics: Metrics) -> str:
    """Return the worker with the best `2 * overlap - cache usage - normalised waiting`."""
    longest = max(1, *matches.values())
    busiest = max(1, *(one.num_requests_waiting for one in metrics.endpoints))

    def logit(worker_id: str, usage: float, waiting: int) -> float:
        return 2.0 * matches[worker_id] / longest - usage - waiting / busiest

    best = max(
        metrics.endpoints,
        key=lambda one: logit(one.worker_id, one.gpu_cache_usage_perc, one.num_requests_waiting),
    )
    return best.worker_id


async def main(url: str) -> None:
    """Send one prompt twice by `custom_router`, and say why the second went where it went."""
    chat = {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": QUESTION}]}
    async with AsyncClient(url) as client:
        first = await client.custom(chat, custom_router)
        second = await client.custom(chat, custom_router)
        route = await client.route(chat)
    print("first ", first.worker_id)
    print("second", second.worker_id, "cached blocks by worker:", route.matches)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
