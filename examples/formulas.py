"""The cost formulas by name, on workers you describe. `kvmesh router --kv-cost NAME` uses one."""

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import COSTS, formula_line, score_of
from kvmesh.core.cost.terms import Candidate, survey

SEEDS = ("overlap-load", "overlap-blocks", "prefill-decode", "overlap-usage-waiting")


def worker(name: str, cached: float, usage: float, waiting: int) -> Candidate:
    """Return a worker that holds the share `cached` of a prompt of 1,600 tokens."""
    return Candidate(
        worker=WorkerId(name),
        block_size=16,
        prompt_tokens=1600,
        overlap_blocks=round(100 * cached),
        request_blocks=100,
        uncached_tokens=round(1600 * (1.0 - cached)),
        decode_blocks=100 + round(1000 * usage),
        cache_usage=usage,
        waiting_requests=waiting,
    )


def main() -> None:
    """Print every worker's line and the choice of each formula."""
    workers = [
        worker("w1", 0.15, 0.30, 0),
        worker("w2", 0.50, 0.50, 1),
        worker("w3", 0.75, 0.80, 2),
    ]
    for name in SEEDS:
        cost = COSTS[name]
        weights = cost.weights.default
        fleet = survey(workers, weights)
        scores = {one.worker: score_of(cost, one, fleet, weights) for one in workers}
        for one in workers:
            print(formula_line(cost, scores[one.worker], one, fleet, weights))
        best = max(scores, key=scores.__getitem__)
        print(f"{name}: {best if cost.maximise else min(scores, key=scores.__getitem__)}\n")


if __name__ == "__main__":
    main()
