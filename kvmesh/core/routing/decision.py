"""What goes into a routing decision and what comes out of it."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from kvmesh.bounds import Count, MaybeName, Priority, Seconds, Temperature, Tokens, Weight, shown
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.chat.prompt_form import Unforeseen
from kvmesh.core.cost.arms import Arm
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, Pricing
from kvmesh.core.cost.formulas import Cost, formula_line
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import Brought, Candidate, Fleet
from kvmesh.core.cost.weights import Weights, weights_of
from kvmesh.core.index.tier_credit import DEFAULT_WEIGHTS
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.programs.turn import Turn


class Forecast(msgspec.Struct, frozen=True):
    """Of one request at `worker`: times in ms, 0 for an unknown `tpot_ms`; the `chance` to miss a
    target. `ttft_ms` counts from the request's arrival, `waited_ms` of it are over; `own_ms` is its
    own prefill, with nobody before it.
    """

    worker: WorkerId
    ttft_ms: float
    tpot_ms: float
    waited_ms: float
    own_ms: float
    chance: float


_SHOWN_NAMES: Final = 8
_SHOWN_CHARS: Final = 64

RouterMode = Literal["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]


class RouterOptions(msgspec.Struct, frozen=True):
    """How a scheduler decides. `temperature` 0 takes the best; times are seconds.

    `cost` is one of `formulas`; `weights` are those of it, by name, that differ from its defaults,
    `overlap_score_weight` one of them.
    `predict_ttl_s`: a routed prompt counts as cached until events confirm it; `approx_ttl_s`: the
    same for workers without (trusted) events. `smallest_tree_ties` breaks ties by cache size.
    `tier_weights`: what a cached block counts for in each tier of memory, device first, until it is
    known how long bringing it takes; in `fixed_tiers` always.
    `replica` names this scheduler among those of its bucket, where there are several.
    """

    mode: RouterMode = "kv"
    cost: str = "predicted-time"
    temperature: float = 0.0
    overlap_score_weight: float | None = None
    block_size: int = 16
    predict_ttl_s: float = 5.0
    approx_ttl_s: float = 120.0
    smallest_tree_ties: bool = False
    tier_weights: tuple[float, ...] = DEFAULT_WEIGHTS
    fixed_tiers: frozenset[int] = frozenset()
    weights: Mapping[str, float] = {}
    formulas: Formulas = PUBLISHED
    replica: str = ""

    def pricing(self) -> Pricing:
        """Return the formula and its weights. Raises `ConfigError` for what there is not."""
        weights = dict(self.weights)
        if self.overlap_score_weight is not None:
            weights["overlap_score_weight"] = self.overlap_score_weight
        return self.formulas.pricing(self.cost, weights)

    def own_overlap_weight(self) -> float | None:
        """Return the formula's weight of overlap, set or by default; None where it has none."""
        return weights_of(self.pricing().weights).get("overlap_score_weight")


Restriction = tuple[object, ...]


class Wished(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request asks of routing besides its prompt. Overrides (`mode` ..
    `overlap_score_weight`) are None when not given.

    `allowed_workers` None allows all. Its worker has all `labels`, and no taint but the
    `tolerations`. Requests of one `session` (a `session_key`) stay together where the router keeps
    sessions. `tenant` and `priority` (larger is more urgent) are for admission, not for the choice,
    `timeout_s` (for how long its client waits) for who forwards it. `overridden`: its client named
    policy or worker, perhaps as the router would have chosen. `targets`: how soon its tokens shall
    come, None where nobody said. Of equal workers those of one `affinity` (`affinity_of`, 0: none)
    take the same. `keep_s`: how long its client would have the prompt kept, 0 where nobody said.
    """

    mode: RouterMode | None = None
    cost: MaybeName | None = None
    temperature: Temperature | None = None
    overlap_score_weight: Weight | None = None
    allowed_workers: frozenset[WorkerId] | None = None
    pinned_worker: WorkerId | None = None
    labels: frozenset[str] = frozenset()
    tolerations: frozenset[str] = frozenset()
    priority: Priority = 0
    tenant: MaybeName = ""
    session: str = ""
    timeout_s: Seconds | None = None
    overridden: bool = False
    targets: Targets | None = None
    affinity: int = 0
    keep_s: int = 0

    def restriction(self) -> Restriction:
        """Return all that says which workers may take it, `UNRESTRICTED` for nothing."""
        return self.pinned_worker, self.allowed_workers, self.labels, self.tolerations

    def lacking(self, info: WorkerInfo) -> str | None:
        """Return what a worker lacks of what is asked for, in words; None: nothing."""
        if not self.labels <= info.labels:
            return f"has no label {_listed(self.labels - info.labels)}"
        if not info.taints <= self.tolerations:
            return f"tainted {_listed(info.taints - self.tolerations)}"
        return None


UNRESTRICTED: Final = Wished().restriction()


class RouteRequest(Wished, frozen=True, gc=False):
    """One request to route, with what it wishes.

    `excluded` are the workers that already failed it. `streams` False: the client gets one whole
    answer, so no first token will be seen. `prefilled`: another worker computes the prompt, its KV
    cache comes from there. `approximate`: its hashes are not of the engine's token ids, so no event
    can confirm them. `unforeseen`: why it is not foretold how much of the prompt its engine reuses,
    "" where it is. `stored`: the id of the answer that it goes on from, which one engine keeps.
    `estimated`: nothing looks at its prompt: no hashes, `prompt_tokens` by the size of the body.
    `choices` are the answers to the one prompt. `names_source`: it can be sent with where its
    worker shall fetch a prefix from. `adapter` is the LoRA adapter that it is for, "" for none.
    `turn`: whose turn it is, None where it is part of no program. `media`: which images, sounds and
    videos of it are followed, in words; "" where it has none.
    """

    request_id: str
    hashes: Hashes
    prompt_tokens: Tokens
    expected_output_tokens: Tokens = 0
    model: MaybeName = ""
    excluded: frozenset[WorkerId] = frozenset()
    streams: bool = True
    approximate: bool = False
    prefilled: bool = False
    choices: Count = 1
    estimated: bool = False
    names_source: bool = False
    unforeseen: Unforeseen = ""
    stored: MaybeName = ""
    adapter: str = ""
    turn: Turn | None = None
    media: str = ""

    def departs_from(self, options: RouterOptions) -> bool:
        """Return whether an `overridden` one was routed by another policy than the router's."""
        return (
            self.pinned_worker is not None
            or self.mode not in (None, options.mode)
            or self.cost not in (None, options.cost)
            or self.temperature not in (None, options.temperature)
            or self.overlap_score_weight not in (None, options.own_overlap_weight())
        )

    def bare(self) -> "RouteRequest":
        """Return the request without the workers and labels that it asks for."""
        return msgspec.structs.replace(
            self, allowed_workers=None, pinned_worker=None, labels=frozenset()
        )

    def unserved_by(self, info: WorkerInfo) -> str | None:
        """Return what a worker lacks of what the request asks for, in words; None: nothing."""
        if self.model and info.models and self.model not in info.models:
            return f"does not serve {shown(self.model)}"
        return self.lacking(info)

    def kept_from(self, worker: WorkerId, info: WorkerInfo) -> str | None:
        """Return why a worker may not take it, whatever its load; None: it may."""
        if self.pinned_worker is not None and worker != self.pinned_worker:
            return "not the pinned worker"
        if worker in self.excluded:
            return "already failed this request"
        if self.allowed_workers is not None and worker not in self.allowed_workers:
            return "not allowed for this request"
        return self.unserved_by(info)


def _listed(names: frozenset[str]) -> str:
    """Return names for a message: of many, and of long ones, the beginning."""
    first = ", ".join(name[:_SHOWN_CHARS] for name in sorted(names)[:_SHOWN_NAMES])
    return first if len(names) <= _SHOWN_NAMES else f"{first} and {len(names) - _SHOWN_NAMES} more"


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes and why.

    `chosen` are the worker's terms; `candidates` and `scores` (same order) are those that were
    weighed one by one: all of them for `explain`, perhaps only the chosen for `schedule`. `policy`
    is the mode, or the cost formula of mode kv, where caches count (`by_cache`). Smaller scores win
    unless `cost.maximise`. `kept`: its session's worker, whatever the others cost.
    `best_overlap_blocks` is the most that any considered worker holds, 0 where caches were not
    looked up;
    `told_blocks` of the prompt the chosen worker's own events had told of. `instead_of`: why the
    formula that was to decide did not. `brought`: what the worker brings to its device first. `arm`
    is that whose policy decided, None while none is on trial. `unforeseen` is the request's.
    Of a request with targets: `forecast` at its worker, `best_forecast` at that least likely to
    miss them, `forecasts` of the `candidates`, in their order.
    """

    request_id: str
    worker: WorkerId
    overlap_blocks: int
    total_blocks: int
    policy: str
    score: float
    considered: int
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]
    cost: Cost
    fleet: Fleet
    weights: Weights
    by_cache: bool
    kept: bool = False
    best_overlap_blocks: int = 0
    told_blocks: int = 0
    instead_of: str = ""
    arm: Arm | None = None
    brought: Brought | None = None
    unforeseen: Unforeseen = ""
    forecast: Forecast | None = None
    best_forecast: Forecast | None = None
    forecasts: tuple[Forecast, ...] = ()

    def formula_line(self, worker: WorkerId) -> str:
        """Return the debug line of a weighed candidate. Raises `KeyError` for any other."""
        for candidate, score in zip(self.candidates, self.scores, strict=True):
            if candidate.worker == worker:
                return formula_line(self.cost, score, candidate, self.fleet, self.weights)
        raise KeyError(worker)
