"""Live requests weighed by other formulas or weights, without routing by them."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kvmesh.core.cost.catalogue import PUBLISHED, Formulas
from kvmesh.core.cost.formulas import Cost, scores_of
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.terms import Candidate, survey
from kvmesh.core.cost.weights import Weights
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError

MAX_SHADOWS: Final = 8


class ShadowPolicy(msgspec.Struct, frozen=True):
    """A formula of mode kv with its weights; `name` as it was written."""

    name: str
    cost: Cost
    weights: Weights


class ShadowReport(msgspec.Struct, frozen=True):
    """What a shadow would have done with `decisions` live requests. Sums over all of them.

    `agreed`: it would have taken the same worker. Blocks are of the prompts, cached at the worker
    taken (`achieved`) and at the one it would have taken (`would_be`); `wait_ms` is how long
    those workers' prefill queues were, `requests` how many requests they had.
    """

    policy: str
    decisions: int
    agreed: int
    request_blocks: int
    achieved_blocks: int
    would_be_blocks: int
    achieved_wait_ms: float
    would_be_wait_ms: float
    achieved_requests: int
    would_be_requests: int


def parse_shadow(text: str, block_size: int, formulas: Formulas = PUBLISHED) -> ShadowPolicy:
    """Return the shadow `text` names: `kv:COST[:name=number…]`. Raises `ConfigError`."""
    options = parse_policy(text, block_size, formulas)
    if options.mode != "kv":
        raise ConfigError(f"shadow policy {text!r}: only mode kv has costs; write kv:COST")
    pricing = options.pricing()
    return ShadowPolicy(text, pricing.cost, pricing.weights)


class ShadowPolicies:
    """Judges decisions whose candidates are all known; what the live policy booked is the load
    that every shadow sees, so each is asked about one request at a time.
    """

    def __init__(self, policies: Sequence[ShadowPolicy]) -> None:
        if len(policies) > MAX_SHADOWS:
            raise ConfigError(f"{len(policies)} shadow policies: at most {MAX_SHADOWS}")
        self._sums = [_Sums(policy) for policy in policies]

    def __len__(self) -> int:
        return len(self._sums)

    def put(self, policy: ShadowPolicy) -> None:
        """Judge by one more from now on, in place of one of that name: it begins anew."""
        self.drop(policy.name)
        self._sums.append(_Sums(policy))

    def drop(self, name: str) -> None:
        """Judge by the one called `name` no more; no error when there is none."""
        self._sums = [sums for sums in self._sums if sums.policy.name != name]

    def judge(self, decision: Decision) -> None:
        """Have every shadow choose; nothing when the decision has not all its candidates."""
        if not self._sums or len(decision.candidates) < decision.considered:
            return
        taken = decision.chosen
        for sums in self._sums:
            wanted = _choose(sums.policy, decision.candidates)
            if wanted is not None:
                sums.add(taken, wanted)

    def reports(self) -> list[ShadowReport]:
        """Return what is known of each shadow, in the order they were given."""
        return [sums.report() for sums in self._sums]


def _choose(policy: ShadowPolicy, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the best candidate; among equals, the one with most of the prompt. None where a
    formula of one's own fails, or is off.
    """
    fleet, weights, cost = survey(candidates, policy.weights), policy.weights, policy.cost
    if isinstance(cost.formula, OwnFormula) and cost.formula.off:
        return None
    scores = scores_of(cost, candidates, fleet, weights)
    if scores is None:
        return None
    sign = -1.0 if cost.maximise else 1.0
    _, best = min(
        zip(scores, candidates, strict=True),
        key=lambda one: (sign * one[0], -one[1].overlap_blocks, one[1].worker),
    )
    return best


class _Sums:
    def __init__(self, policy: ShadowPolicy) -> None:
        self.policy = policy
        self._decisions = self._agreed = self._blocks = 0
        self._achieved = _Place()
        self._would_be = _Place()

    def add(self, taken: Candidate, wanted: Candidate) -> None:
        self._decisions += 1
        self._agreed += taken.worker == wanted.worker
        self._blocks += taken.request_blocks
        self._achieved.add(taken)
        self._would_be.add(wanted)

    def report(self) -> ShadowReport:
        achieved, would_be = self._achieved, self._would_be
        return ShadowReport(
            policy=self.policy.name,
            decisions=self._decisions,
            agreed=self._agreed,
            request_blocks=self._blocks,
            achieved_blocks=achieved.blocks,
            would_be_blocks=would_be.blocks,
            achieved_wait_ms=achieved.wait_ms,
            would_be_wait_ms=would_be.wait_ms,
            achieved_requests=achieved.requests,
            would_be_requests=would_be.requests,
        )


class _Place:
    def __init__(self) -> None:
        self.blocks = self.requests = 0
        self.wait_ms = 0.0

    def add(self, candidate: Candidate) -> None:
        self.blocks += candidate.overlap_blocks
        self.wait_ms += candidate.wait_ms
        self.requests += candidate.active_requests


def add_reports(parts: Iterable[ShadowReport]) -> list[ShadowReport]:
    """Return several routers' reports as one of each policy, in the order they first come."""
    sums: dict[str, ShadowReport] = {}
    for part in parts:
        known = sums.get(part.policy)
        if known is not None:
            names = [name for name in part.__struct_fields__ if name != "policy"]
            total = {name: getattr(known, name) + getattr(part, name) for name in names}
            part = msgspec.structs.replace(known, **total)  # noqa: PLW2901  the sum takes its place
        sums[part.policy] = part
    return list(sums.values())
