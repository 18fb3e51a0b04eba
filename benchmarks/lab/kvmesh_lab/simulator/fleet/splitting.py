"""Prefill and decode on two engines of a simulated fleet, by the production choice of ways."""

from typing import Final

import xxhash

from kvmesh.core.cost.terms import Candidate
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.choice.kv_transfers import Transfers, moved_tokens
from kvmesh.core.routing.choice.split_choice import choose_way
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.disaggregation import (
    SplitOptions,
    prefill_request,
    role_marks,
)
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import Errand

_ALL: Final = 2.0**64


class Splitting:
    """One router's part in it. `split` counts requests by why they stayed whole, "" for the others.

    A request that is prefilled is booked there under its name and `/prefill`.
    """

    def __init__(self, scheduler: Scheduler, fleet: FleetOptions) -> None:
        self.split: dict[str, int] = {}
        self._scheduler = scheduler
        self._fleet = fleet
        self._options = SplitOptions(
            threshold_tokens=fleet.prefill_threshold,
            max_retries=fleet.retries,
            timeout_s=fleet.client_timeout_s,
            adaptive=fleet.split_share is None,
        )
        self.transfers = Transfers()
        self._fetching: dict[str, tuple[Candidate, float]] = {}

    def prefill(self, errand: Errand, wanted: RouteRequest, now: float) -> Decision | None:
        """Have another engine compute the prompt, and book it there; None: it stays whole."""
        why = choose_way(self._scheduler, wanted, self._options, self.transfers, now).reason
        share = self._fleet.split_share
        if not why and share is not None and not _is_among(wanted.request_id, share):
            why = "not of the share"
        decision: Decision | None = None
        if not why:
            try:
                asked = prefill_request(wanted, errand.failed)
                decision = self._scheduler.schedule(asked, now).record.decision
            except NoWorkerError:
                why = "no prefill worker"
        self.split[why] = self.split.get(why, 0) + 1
        return decision

    def fetch_s(self, decision: Decision, now: float) -> float:
        """Return how long the engine decided on takes to fetch the prompt, s."""
        chosen, fleet = decision.chosen, self._fleet
        self._fetching[decision.request_id] = chosen, now
        tokens = moved_tokens(chosen)
        return (
            (fleet.transfer_ms + fleet.transfer_ms_per_token * tokens) / 1000.0 if tokens else 0.0
        )

    def began(self, request_id: str, now: float) -> None:
        """Learn from a first token how long the prompt took to come."""
        fetched = self._fetching.pop(request_id, None)
        if fetched is not None:
            chosen, sent_s = fetched
            self.transfers.seen(chosen, now - sent_s)


def role_of(number: int, fleet: FleetOptions) -> WorkerInfo:
    """Return what an engine says of its role."""
    labels, taints = role_marks("prefill" if number < fleet.prefillers else "decode", whole=True)
    return WorkerInfo(labels=frozenset(labels), taints=frozenset(taints))


def _is_among(request_id: str, share: float) -> bool:
    return xxhash.xxh3_64_intdigest(request_id.encode()) / _ALL < share
