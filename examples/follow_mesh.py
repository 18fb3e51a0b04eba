"""Follow a live mesh: what each worker has cached of a prompt, how busy it is, your own choice.

Usage: follow_mesh.py [NATS_URL [BUCKET]]
"""

import asyncio
import sys

import kvmesh
from kvmesh import KvIndexer, KvMetrics, KvMetricsAggregator

PROMPT = "Say again, slowly, what a KV cache is good for. " * 30
TOKEN_IDS = list(PROMPT.encode())
"""As the simulated engines tokenize; for a model's: `tokenizer.encode(PROMPT)`."""

LOAD_WEIGHT = 1000.0
"""How many cached blocks a worker must have more for being full rather than idle."""


def calculate_score(cache_hits: int, load: float) -> float:
    """Return what a worker is worth, in cached blocks."""
    return cache_hits - LOAD_WEIGHT * load


def custom_router(matches: dict[str, int], metrics: KvMetrics) -> str:
    """Return the worker with the best score. Raises `ValueError` while there is no worker."""
    scores = {}
    for worker_id, cache_hits in matches.items():
        load = metrics.get_worker_load(worker_id)
        scores[worker_id] = calculate_score(cache_hits, load)
    return max(scores, key=scores.__getitem__)


async def main(nats_url: str, bucket: str) -> None:
    """Look at a bucket once."""
    async with kvmesh.follow(nats_url, bucket) as listener:
        indexer = KvIndexer(listener)
        metrics_aggregator = KvMetricsAggregator(listener)

        matches = indexer.find_matches_for_request(TOKEN_IDS)
        print("Cache Distribution:", matches)

        metrics = metrics_aggregator.get_metrics()
        for endpoint in metrics.endpoints:
            print(
                *("Worker", endpoint.worker_id, "cache used", endpoint.gpu_cache_usage_perc),
                *("waiting", endpoint.num_requests_waiting),
                *("load", round(metrics.get_worker_load(endpoint.worker_id), 3)),
            )
        print("Chosen:", custom_router(matches, metrics))


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    asyncio.run(main(arguments.get(1, ""), arguments.get(2, "default")))
