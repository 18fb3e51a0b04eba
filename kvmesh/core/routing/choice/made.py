"""From what the compiled core chose to a `Decision`."""

from collections.abc import Sequence

import msgspec

from kvmesh._native import Forecasts, Record
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.prompt_form import Unforeseen
from kvmesh.core.cost.arms import Arm
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.terms import NO_FLEET, Brought, Candidate, survey
from kvmesh.core.routing.decision import Decision, Forecast

Terms = tuple[
    WorkerId, int, int, int, int, int, int, int, int, int, int, int, float, int, int,
    float, float, float, float, float, float, float, float, float, float, str, float,
]  # fmt: skip
"""A candidate's, in the order of `Candidate`."""


class Maker(msgspec.Struct, eq=False, gc=False):
    """Makes the `Decision` of a compiled decision, once somebody reads it.

    `kept`: its session's worker. `instead_of`: why another formula did not decide. A record keeps
    it: nothing here leads back to who decides, or to a record.
    """

    pricing: Pricing
    kept: bool = False
    request_id: str = ""
    arm: Arm | None = None
    brought: dict[WorkerId, Brought] = {}
    forecasts: Forecasts | None = None
    instead_of: str = ""
    unforeseen: Unforeseen = ""

    def __call__(self, record: Record) -> Decision:
        """Return what the decision was."""
        cost, weights = self.pricing.cost, self.pricing.weights
        (chosen,) = candidates = self.candidates([record.terms()])
        costs: tuple[float, ...] = (record.score,)
        if weighed := record.weighed():
            candidates = self.candidates([terms for _, terms in weighed])
            chosen = next(one for one in candidates if one.worker == chosen.worker)
            costs = tuple(cost for cost, _ in weighed)
        fleet = survey(candidates, weights) if weighed or not record.by_cache else NO_FLEET
        decision = Decision(
            request_id=self.request_id or record.request_id.decode("latin-1"),
            worker=chosen.worker,
            overlap_blocks=chosen.overlap_blocks,
            total_blocks=chosen.request_blocks,
            policy=record.policy,
            score=-record.score if cost.maximise else record.score,
            considered=record.considered,
            chosen=chosen,
            candidates=candidates,
            scores=tuple(-one for one in costs) if cost.maximise else costs,
            cost=cost,
            fleet=fleet,
            weights=weights,
            by_cache=record.by_cache,
            best_overlap_blocks=record.best_overlap_blocks,
            told_blocks=record.told_blocks,
            kept=self.kept,
            instead_of=self.instead_of,
            arm=self.arm,
            brought=self.brought.get(chosen.worker),
            unforeseen=self.unforeseen,
        )
        if self.forecasts is None or not (found := self.forecasts.all()):
            return decision
        return _with_forecasts(decision, {name: Forecast(name, *one) for name, *one in found})

    def candidates(self, terms: Sequence[Terms]) -> tuple[Candidate, ...]:
        """Return candidates of their terms, with whom they would fetch from."""
        made = tuple([Candidate(*one) for one in terms])
        if not self.brought:
            return made
        return tuple(
            msgspec.structs.replace(one, fetch_from=brought.source)
            if (brought := self.brought.get(one.worker)) is not None and brought.source
            else one
            for one in made
        )

    def forecast(self, worker: WorkerId) -> Forecast | None:
        """Return what was foretold of the request at a worker."""
        found = None if self.forecasts is None else self.forecasts.at(worker)
        return None if found is None else Forecast(*found)


def _with_forecasts(decision: Decision, forecasts: dict[WorkerId, Forecast]) -> Decision:
    return msgspec.structs.replace(
        decision,
        forecast=forecasts[decision.worker],
        best_forecast=min(forecasts.values(), key=lambda one: one.chance),
        forecasts=tuple(forecasts[one.worker] for one in decision.candidates),
    )
