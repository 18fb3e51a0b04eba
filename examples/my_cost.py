"""A cost formula of one's own: `kvmesh router --kv-cost examples/my_cost.py:my_cost`.

The same file runs in the router, as a shadow, in the simulator and its search for weights:

    kvmesh router   --kv-cost examples/my_cost.py:my_cost:per_request=3
    kvmesh router   --shadow-policy kv:examples/my_cost.py:my_cost
    kvmesh simulate TRACE --policy kv,kv:examples/my_cost.py:my_cost
    kvmesh simulate TRACE --tune examples/my_cost.py:my_cost

docs/operate/tuning.md lists what a candidate and the fleet tell, and their units.
"""

import random
from typing import Annotated

from msgspec import Meta, Struct

from kvmesh import (
    Candidate,
    Fleet,
    Formulas,
    KvRouter,
    RouterOptions,
    cost_formula,
    own_cost,
)


class MyWeights(Struct, frozen=True):
    """Each weight: a type, a range, a meaning and a default."""

    hit: Annotated[float, Meta(ge=0, le=10, description="what a cached block saves")] = 1.0
    per_request: Annotated[float, Meta(ge=0, le=100, description="blocks a request costs")] = 2.0
    crowd: Annotated[int, Meta(ge=1, le=10_000, description="requests above which it hurts")] = 32


@cost_formula(unit="blocks")
def my_cost(candidate: Candidate, fleet: Fleet, weights: MyWeights) -> float:
    """Return what the request costs at one worker, in blocks; the least is chosen.

    Prefill that waits and its own, less what is cached there, plus the requests there: more than
    in proportion where they are many. A worker with requests waiting comes after those without.
    """
    prefill = (candidate.prefill_tokens + candidate.prompt_tokens) / candidate.block_size
    own = prefill - weights.hit * candidate.overlap_blocks
    requests = candidate.active_requests * weights.per_request
    if candidate.active_requests > weights.crowd:
        requests *= candidate.active_requests / weights.crowd
    waiting = candidate.waiting_requests / max(1, fleet.max_waiting)
    return own + requests + candidate.request_blocks * waiting


@cost_formula(maximise=True, unit="share")
def hit_minus_load(candidate: Candidate, fleet: Fleet) -> float:
    """Return the cached share of the prompt less the used share of the cache; the most wins."""
    del fleet
    return candidate.overlap_blocks / max(1, candidate.request_blocks) - candidate.cache_usage


def main() -> None:
    """Route a few prompts by it, without a server: `KvRouter` takes such functions, too."""
    formulas = Formulas([own_cost(my_cost, "my_cost")])
    rng = random.Random(7)  # noqa: S311 - draws among equals, guards no secret
    options = RouterOptions(cost="my_cost", weights={"per_request": 3.0}, formulas=formulas)
    router = KvRouter(rng, options, use_kv_events=False)
    for worker in ("w0", "w1"):
        router.add_worker(worker, now=0.0)
    prompts = {"first": 0, "second": 0, "other": 1}
    for number, (name, family) in enumerate(prompts.items()):
        tokens = [family * 1000 + one for one in range(160)]
        best = router.find_best_match(name, tokens, now=float(number))
        router.mark_prefill_completed(name, now=number + 0.5)
        print(f"{name:6} goes to {best.worker_id}, {best.overlap_blocks} blocks cached")
    print(router.explain(list(range(160)), now=9.0).candidates[0].formula)


if __name__ == "__main__":
    main()
