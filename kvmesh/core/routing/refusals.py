"""Why no worker may take a request, in words; who and what was ever there."""

from collections.abc import Callable, Iterable
from typing import Final

from kvmesh._native import WorkerState
from kvmesh.bounds import shown
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.known_names import KnownNames
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import BusyThresholds, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest

NAMED_IN_ERRORS: Final = 8
_MODELS_REMEMBERED: Final = 256
_LEFT_REMEMBERED: Final = 1024

WhyNot = Callable[[WorkerId], str | None]
"""Says why a worker may not take the request in question."""


def busy(state: WorkerState, limits: BusyThresholds) -> str | None:
    """Return which threshold a worker's load is beyond, in words; None: it is not busy."""
    loads, capacity = state.loads, state.capacity_blocks
    most_tokens, most_blocks = limits.active_prefill_tokens, limits.active_decode_blocks
    if most_tokens is not None and loads.prefill_tokens > most_tokens:
        return f"busy: {loads.prefill_tokens} prefill tokens queued"
    if most_blocks is not None and capacity and loads.active_blocks > most_blocks * capacity:
        return f"busy: {loads.active_blocks} of {capacity} blocks in use"
    return None


class Refusals:
    """Says why a request was refused; remembers the last workers that left, and their models."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._models = KnownNames(_MODELS_REMEMBERED)
        self._left = KnownNames(_LEFT_REMEMBERED)

    def note_left(self, worker: WorkerId, info: WorkerInfo) -> None:
        """Remember a worker that left, and what it served."""
        self._models.add(info.models)
        self._left.add((worker,))

    def is_stranger(self, pinned: WorkerId | None, now: float) -> bool:
        """Return whether no such worker was ever there, though all had the time to be heard."""
        if pinned is None or pinned in self._membership or pinned in self._left:
            return False
        return self._membership.signs.all_reported(now)

    def is_unknown(self, model: str, served: Iterable[tuple[str, ...]]) -> bool:
        """Return whether all workers say what they serve: not this, nor did one that left."""
        told = list(served)
        known = model in self._models or any(model in models for models in told)
        return bool(model and told) and all(told) and not known

    def words(self, request: RouteRequest, now: float, why_not: WhyNot, *, unknown: bool) -> str:
        """Return why nobody may take a request, by worker; `unknown`: nor ever could, its model is
        served by none.
        """
        pinned, members = request.pinned_worker, self._membership.members()
        if pinned is not None and self.is_stranger(pinned, now):
            more = ", …" if len(members) > NAMED_IN_ERRORS else ""
            known = ", ".join(members[:NAMED_IN_ERRORS]) + more
            return f"the worker {shown(pinned)} does not exist; known are: {known or 'none'}"
        if pinned is not None:
            members = (pinned,)
        reasons = [f"{name}: {why_not(WorkerId(name))}" for name in members[:NAMED_IN_ERRORS]]
        if len(members) > NAMED_IN_ERRORS:
            reasons.append(f"and {len(members) - NAMED_IN_ERRORS} more")
        listed = "; ".join(reasons) or "no worker has joined"
        if unknown:
            model = shown(request.model)
            return f"the model {model} does not exist: no worker serves it ({listed})"
        return f"request {request.request_id}: no worker may take it ({listed})"
