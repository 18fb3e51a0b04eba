"""What a request asks of routing besides its prompt: by what to decide, and among which workers."""

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.cost.targets import Targets
from kvmesh.core.routing.decision import RouteRequest, RouterMode


class Wishes(msgspec.Struct, frozen=True):
    """One request's wishes, checked; the fields are those of `RouteRequest`.

    `output_tokens` is the caller's estimate, None without one; `session` a `session_key` or "".
    `overridden`: the client named policy or worker. `chooses`: something of it may matter to which
    worker is taken.
    """

    mode: RouterMode | None = None
    cost: str | None = None
    temperature: float | None = None
    overlap_score_weight: float | None = None
    pinned_worker: WorkerId | None = None
    allowed_workers: frozenset[WorkerId] | None = None
    labels: frozenset[str] = frozenset()
    tolerations: frozenset[str] = frozenset()
    output_tokens: int | None = None
    priority: int = 0
    session: str = ""
    tenant: str = ""
    timeout_s: float | None = None
    overridden: bool = False
    targets: Targets | None = None
    chooses: bool = False

    def has_no_policy(self) -> bool:
        """Return whether mode, formula, weights and temperature are left to the router."""
        return (
            self.mode is None
            and self.cost is None
            and self.temperature is None
            and self.overlap_score_weight is None
        )

    def has_restrictions(self) -> bool:
        """Return whether it names workers, or says which may take it."""
        return bool(
            self.pinned_worker is not None
            or self.allowed_workers is not None
            or self.labels
            or self.tolerations
        )

    def request(self, model: str) -> RouteRequest:
        """Return a request for `model` that asks for this, without a prompt or a name yet."""
        return RouteRequest(
            request_id="",
            hashes=NO_HASHES,
            prompt_tokens=0,
            model=model,
            mode=self.mode,
            cost=self.cost,
            temperature=self.temperature,
            overlap_score_weight=self.overlap_score_weight,
            allowed_workers=self.allowed_workers,
            pinned_worker=self.pinned_worker,
            labels=self.labels,
            tolerations=self.tolerations,
            priority=self.priority,
            tenant=self.tenant,
            session=self.session,
            timeout_s=self.timeout_s,
            overridden=self.overridden,
            targets=self.targets,
        )
