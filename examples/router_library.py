"""The whole decision as a library: workers, events and load in, a worker out. No NATS, no HTTP."""

import random

from kvmesh import (
    ROOT,
    KvMetricsAggregator,
    KvRouter,
    LoadReport,
    NoWorkerError,
    RequestOptions,
    RouterOptions,
    Stored,
    WorkerInfo,
    failed_attempt,
    pack_hashes,
    sequence_hashes,
)

BLOCK_SIZE = 16
PROMPT = list(range(160))


def main() -> None:
    """Route some requests; time is a number, so that every run prints the same."""
    rng = random.Random(7)  # noqa: S311 - draws among equals, guards no secret
    router = KvRouter(rng, RouterOptions(block_size=BLOCK_SIZE))
    for worker in ("w0", "w1", "w2"):
        router.add_worker(worker, now=0.0, info=WorkerInfo(total_blocks=1000))
    hashes = sequence_hashes(PROMPT, BLOCK_SIZE)
    router.apply_event("w1", Stored(ROOT, pack_hashes(hashes[:8])))

    best = router.find_best_match("r1", PROMPT, now=0.1)
    print(
        "chosen    ", best.worker_id, best.overlap_blocks, "of", best.total_blocks, "blocks cached"
    )
    print("waiting   ", router.loads()[best.worker_id].prefill_tokens, "tokens to prefill there")
    router.mark_prefill_completed("r1", now=0.2)
    router.add_output_tokens("r1", 32, now=0.5)
    print("running   ", router.loads()[best.worker_id].active_blocks, "blocks in use there")
    router.free("r1", now=0.6)

    view = router.explain(PROMPT, now=0.7)
    print("why       ", view.worker, view.why)
    for one in view.candidates:
        print("          ", one.formula)

    first = router.find_best_match("r2", PROMPT, now=0.8)
    router.free("r2", now=0.9, attempt=failed_attempt("reset"))
    elsewhere = RequestOptions(excluded=frozenset({first.worker_id}))
    second = router.find_best_match("r2", PROMPT, now=0.9, options=elsewhere)
    print("retried   ", second.worker_id, "because", first.worker_id, "failed")

    router.report_load("w0", LoadReport(running_requests=3, used_blocks=500))
    endpoints = KvMetricsAggregator(router.workers).get_metrics().endpoints
    print("cache used", {one.worker_id: one.gpu_cache_usage_perc for one in endpoints})
    try:
        router.find_best_match("r3", PROMPT, now=1.0, options=RequestOptions(worker_id="w9"))
    except NoWorkerError as error:
        print("refused   ", error)


if __name__ == "__main__":
    main()
