"""What is asked of records of requests (`kvmesh._native.Record`) beside their ring."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from kvmesh._native import Record
from kvmesh.core.routing.decision import Decision

State = Literal["open", "finished", "client_gone", "failed", "cut", "refused"]


def thin(decision: Decision) -> Decision:
    """Return the decision with the chosen candidate alone."""
    at = decision.candidates.index(decision.chosen)
    return msgspec.structs.replace(
        decision, candidates=(decision.chosen,), scores=(decision.scores[at],)
    )


def find_own(records: Iterable[Record], request_id: bytes, tenant: str) -> Record | None:
    """Return the first record of a tenant's request of that id: another's may have the same."""
    own = (one for one in records if one.tenant == tenant)
    return next((one for one in own if one.request_id == request_id), None)


def count_states(records: Iterable[Record], tenant: str) -> dict[str, int]:
    """Return how many of the records are a tenant's, by state."""
    return Counter(one.state for one in records if one.tenant == tenant)
