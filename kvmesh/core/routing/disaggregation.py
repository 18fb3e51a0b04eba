"""Prefill on one worker, decode on another: who may do what, and what is sent to each.

Roles are labels and taints, so that every rule of choice holds for them, too: a worker for prefill
takes nothing but prefills, one for decode whole requests as well where its engine can.
How the two share the request is the engine's `handshake`.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.facts import Role
from kvmesh.core.routing.decision import RouteRequest

PREFILL: Final = "kvmesh/prefill"
DECODE: Final = "kvmesh/decode"

Marks = tuple[tuple[str, ...], tuple[str, ...]]
"""Labels and taints."""


class SplitOptions(msgspec.Struct, frozen=True):
    """When to split, how often to try and how long to wait: `timeout_s` for a prefill's answer.

    Prompts with fewer than `threshold_tokens` uncached tokens stay whole; of the others all are
    split, or, if it is `adaptive`, those for which that costs less.
    """

    threshold_tokens: int
    max_retries: int
    timeout_s: float
    adaptive: bool = True


def role_marks(role: Role, *, whole: bool) -> Marks:
    """Return the labels and taints of a worker of that role.

    A decode worker that cannot do a whole request (`Connector.whole`) is tainted.
    """
    if role == "prefill":
        return (PREFILL,), (PREFILL,)
    if role == "decode":
        return (DECODE,), () if whole else (DECODE,)
    return (), ()


def does_whole(taints: Collection[str]) -> bool:
    """Return whether a worker with these taints does whole requests, as far as its role goes."""
    return PREFILL not in taints and DECODE not in taints


def prefill_request(request: RouteRequest, excluded: frozenset[WorkerId]) -> RouteRequest:
    """Return what to schedule for the prefill of `request`."""
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}/prefill",
        labels=request.labels | {PREFILL},
        tolerations=request.tolerations | {PREFILL},
        excluded=excluded,
        pinned_worker=None,
        mode=None,
        expected_output_tokens=1,
        streams=False,
        targets=None,
    )


def decode_request(request: RouteRequest) -> RouteRequest:
    """Return what to schedule for the decode of `request`: nothing is left to prefill, and its
    program's cache is elsewhere, so that it is nobody's turn.
    """
    return msgspec.structs.replace(
        request,
        labels=request.labels | {DECODE},
        tolerations=request.tolerations | {DECODE},
        prefilled=True,
        turn=None,
    )
