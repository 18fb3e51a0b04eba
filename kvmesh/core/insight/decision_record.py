"""One request's decision and what became of it."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.trace_ring import Traced
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.output_lengths import OutputForecast
from kvmesh.core.workers.left_out import LeftOut

State = Literal["open", "finished", "client_gone", "failed", "cut", "refused"]


class DecisionRecord(msgspec.Struct, gc=False):
    """One request: its last decision, and what became of it. Times are the caller's, seconds.

    `attempts` counts workers it was sent to, `failures` says what went wrong at those before the
    last. `round_robin_blocks` is what round robin would have found cached; None: not known (yet).
    `held_ms` is how long it waited at the router before its first decision; None: it was not asked
    to. `left_out` are the workers to which no request might go when it was first decided, None
    where that was not kept. `forecast` is how long its answer was expected to become,
    `output_tokens` how long it was when its worker was given back. `overridden`: its client had it
    routed by another policy. `traced` is what a trace keeps of its prompt. `tenant` sent it.
    `version` grows with every change of any record.
    """

    number: int
    request_id: bytes
    decision: Decision
    decided_s: float
    version: int = 0
    state: State = "open"
    status: int = 0
    attempts: int = 1
    failures: tuple[str, ...] = ()
    first_token_s: float | None = None
    ended_s: float | None = None
    reported: Usage | None = None
    round_robin_blocks: int | None = None
    kept: int = 0
    held_ms: float | None = None
    forecast: OutputForecast | None = None
    left_out: LeftOut | None = None
    overridden: bool = False
    output_tokens: int = 0
    traced: Traced | None = None
    tenant: str = ""

    @property
    def ttft_ms(self) -> float | None:
        """Return the time from the first decision to the first token."""
        if self.first_token_s is None:
            return None
        return max(0.0, self.first_token_s - self.decided_s) * 1000.0


def thin(decision: Decision) -> Decision:
    """Return the decision with the chosen candidate alone."""
    at = decision.candidates.index(decision.chosen)
    return msgspec.structs.replace(
        decision, candidates=(decision.chosen,), scores=(decision.scores[at],)
    )


def find_own(
    records: Iterable[DecisionRecord], request_id: bytes, tenant: str
) -> DecisionRecord | None:
    """Return the first record of a tenant's request of that id: another's may have the same."""
    own = (one for one in records if one.tenant == tenant)
    return next((one for one in own if one.request_id == request_id), None)


def count_states(records: Iterable[DecisionRecord], tenant: str) -> dict[str, int]:
    """Return how many of the records are a tenant's, by state."""
    return Counter(one.state for one in records if one.tenant == tenant)
