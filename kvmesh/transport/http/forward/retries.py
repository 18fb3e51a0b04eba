"""Which failures of an upstream may be followed by another attempt."""

from typing import Final

from kvmesh.core.members.poison_guard import key_of
from kvmesh.transport.http.forward.plan import MOST_REFUSED, ForwardOptions
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import retry_after_s
from kvmesh.transport.http.wire.problem import WISHED, WORKERLESS

_ANSWERED: Final = frozenset({"status", "bad_answer", "no_worker"})
"""Failures by which an upstream shows that it lives."""

_ROUTED: Final = b"x-kvmesh-worker"
"""An answer that names its worker comes from a router that has tried the others already."""


class Retries:
    """What one exchange's failed attempts count against its options; made by the first of them."""

    def __init__(self, options: ForwardOptions, pool: UpstreamPool) -> None:
        self._options = options
        self._pool = pool
        self._counted = 0
        self._deaths = 0
        self._refused = 0

    def wait(self) -> None:
        """Count refused connections anew: the plan had said `Wait`."""
        self._refused = 0

    def allow(self, failure: UpstreamFailure, body: bytes) -> bool:
        """Count a failure of the request with this body; return whether another attempt may follow.

        A timeout after sending is not tried again: the first upstream may still be at work, and the
        next would be as slow.
        """
        sent, options = failure.stage != "before_send", self._options
        if sent and failure.kind not in _ANSWERED:
            self._deaths += 1
            if not options.blameless:
                self._pool.note_death(failure, key_of(body))
        begun = failure.kind != "no_worker" and (sent or failure.kind != "refused")
        if begun or self._refused >= MOST_REFUSED:
            self._counted += 1
        else:
            self._refused += 1
        return (
            self._counted <= options.max_retries
            and self._deaths <= options.max_deaths
            and not (sent and failure.kind == "timeout")
        )


def failure_of(head: ResponseHead, origin: str, *, blameless: bool) -> UpstreamFailure | None:
    """Return how an upstream failed that answered with a status to be retried; None where no other
    would answer otherwise: the request was refused for its own wishes, or a router has tried them.
    """
    headers = head.headers
    if WISHED in headers or any(name == _ROUTED for name, _ in headers):
        return None
    return UpstreamFailure(
        stage="mid_response",
        kind="no_worker" if blameless and WORKERLESS in headers else "status",
        message=f"{origin}: answered {head.status}",
        origin=origin,
        status=head.status,
        retry_after_s=retry_after_s(headers),
    )


def ends_them(pool: UpstreamPool, failure: UpstreamFailure, key: bytes) -> bool:
    """Take that an upstream was lost in its answer to the request with that key, b"" for none that
    is kept; return whether this very request ends them.
    """
    if not key:
        return False
    if failure.stage != "before_send":
        pool.note_death(failure, key)
    return bool(pool.poison.deaths) and pool.refuses(key)
