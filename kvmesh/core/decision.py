"""What goes into a routing decision and what comes out of it."""

from enum import Enum
from typing import Final, Literal

import msgspec

from kvmesh.core.cost import Candidate, Cost, Fleet, Weights, formula_line
from kvmesh.core.events import WorkerId
from kvmesh.core.hashing import Hashes
from kvmesh.core.tier_credit import DEFAULT_WEIGHTS

RouterMode = Literal["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]


class Trust(Enum):
    """How far the event-fed index may be believed about one worker."""

    EXACT = "exact"
    CATCHING_UP = "catching-up"
    DEGRADED = "degraded"
    APPROX = "approx"


class RouterOptions(msgspec.Struct, frozen=True):
    """How a scheduler decides. `temperature` 0 takes the best; times are seconds.

    `weights` tunes the formulas; its overlap_score_weight is replaced by the one here.
    `predict_ttl_s`: a routed prompt counts as cached until events confirm it; `approx_ttl_s`: the
    same for workers without (trusted) events. `smallest_tree_ties` breaks ties by cache size.
    `tier_weights`: what a cached block counts for in each tier of memory, device first.
    """

    mode: RouterMode = "kv"
    cost: str = "predicted-time"
    temperature: float = 0.0
    overlap_score_weight: float = 1.0
    block_size: int = 16
    predict_ttl_s: float = 5.0
    approx_ttl_s: float = 120.0
    smallest_tree_ties: bool = False
    tier_weights: tuple[float, ...] = DEFAULT_WEIGHTS
    weights: Weights = Weights()


class BusyThresholds(msgspec.Struct, frozen=True):
    """Load above which a worker gets nothing new; None is off. Either one suffices.

    `active_decode_blocks` is a fraction of the worker's capacity, `active_prefill_tokens` a count.
    """

    active_decode_blocks: float | None = None
    active_prefill_tokens: int | None = None


NO_THRESHOLDS: Final = BusyThresholds()


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself. No `models`: it serves any. `total_blocks` 0: unknown.

    It takes only requests that tolerate all its `taints` and ask for none but its `labels`.
    """

    models: tuple[str, ...] = ()
    total_blocks: int = 0
    trust: Trust = Trust.EXACT
    labels: frozenset[str] = frozenset()
    taints: frozenset[str] = frozenset()


class LoadReport(msgspec.Struct, frozen=True):
    """An engine's own figures, as its sidecar pushed them.

    `waiting_tokens` are uncached prompt tokens not yet begun, None when not told;
    `prefilled_tokens` and the `prefill_busy_us` they took are totals since the engine's start, 0
    when not told.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    waiting_tokens: int | None = None
    prefilled_tokens: int = 0
    prefill_busy_us: int = 0


class RouteRequest(msgspec.Struct, frozen=True, gc=False):
    """One request to route. Overrides (`mode` .. `overlap_score_weight`) are None when not given.

    `allowed_workers` None allows all; `excluded` are those that already failed this request.
    Its worker has all `labels`, and no taint but the `tolerations`.
    `streams` False: the client gets one whole answer, so no first token will be seen.
    `prefilled`: another worker computes the prompt, its KV cache comes from there.
    `approximate`: its hashes are not of the engine's token ids, so no event can confirm them.
    Requests of one `session` (a `session_key`) stay together where the router keeps sessions.
    `tenant` and `priority` (larger is more urgent) are for admission, not for the choice.
    """

    request_id: str
    hashes: Hashes
    prompt_tokens: int
    expected_output_tokens: int = 0
    model: str = ""
    mode: RouterMode | None = None
    cost: str | None = None
    temperature: float | None = None
    overlap_score_weight: float | None = None
    allowed_workers: frozenset[WorkerId] | None = None
    pinned_worker: WorkerId | None = None
    excluded: frozenset[WorkerId] = frozenset()
    priority: int = 0
    streams: bool = True
    tenant: str = ""
    labels: frozenset[str] = frozenset()
    tolerations: frozenset[str] = frozenset()
    approximate: bool = False
    session: str = ""
    prefilled: bool = False

    def unserved_by(self, info: WorkerInfo) -> str | None:
        """Return what a worker lacks of what the request asks for, in words."""
        if self.model and info.models and self.model not in info.models:
            return f"does not serve {self.model!r}"
        if not self.labels <= info.labels:
            return f"has no label {', '.join(sorted(self.labels - info.labels))}"
        if not info.taints <= self.tolerations:
            return f"tainted {', '.join(sorted(info.taints - self.tolerations))}"
        return None


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes and why.

    `candidates` and `scores` (same order) are those that were weighed one by one: all of them for
    `explain`, perhaps only the chosen for `schedule`. `policy` is the mode, or the cost formula
    of mode kv. Smaller scores win unless `cost.maximise`. `kept`: its session's worker, whatever
    the others cost. `best_overlap_blocks` is the most that any worker holds, 0 where caches were
    not looked up.
    """

    request_id: str
    worker: WorkerId
    overlap_blocks: int
    total_blocks: int
    policy: str
    score: float
    considered: int
    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]
    cost: Cost
    fleet: Fleet
    weights: Weights
    kept: bool = False
    best_overlap_blocks: int = 0

    @property
    def chosen(self) -> Candidate:
        """Return the chosen worker's terms."""
        candidates = self.candidates
        if len(candidates) == 1:
            return candidates[0]
        return next(one for one in candidates if one.worker == self.worker)

    @property
    def by_cache(self) -> bool:
        """Return whether caches counted: mode kv, not a blind one."""
        return self.policy == self.cost.name

    def formula_line(self, worker: WorkerId) -> str:
        """Return the debug line of a weighed candidate. Raises `KeyError` for any other."""
        for candidate, score in zip(self.candidates, self.scores, strict=True):
            if candidate.worker == worker:
                return formula_line(self.cost, score, candidate, self.fleet, self.weights)
        raise KeyError(worker)
