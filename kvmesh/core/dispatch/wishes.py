"""What a request asks of routing besides its prompt, before it is a request to route."""

from typing import Any

from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.routing.decision import RouteRequest, Wished


class Wishes(Wished, frozen=True, kw_only=True):
    """One request's wishes, checked.

    `output_tokens` is the caller's estimate, None without one. `chooses`: something of it may
    matter to which worker is taken.
    """

    output_tokens: int | None = None
    chooses: bool = False

    def has_no_policy(self) -> bool:
        """Return whether mode, formula, weights and temperature are left to the router."""
        return (
            self.mode is None
            and self.cost is None
            and self.temperature is None
            and self.overlap_score_weight is None
        )

    def request(self, model: str) -> RouteRequest:
        """Return a request for `model` that asks for this, without a prompt or a name yet."""
        wished: dict[str, Any] = {name: getattr(self, name) for name in Wished.__struct_fields__}
        return RouteRequest("", NO_HASHES, 0, model=model, **wished)
