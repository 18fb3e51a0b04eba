"""What one attempt at a worker showed, and of whom: the worker, the client, or the load."""

from enum import IntEnum
from typing import Final

import msgspec

MOST_RETRY_AFTER_S: Final = 30.0
"""An overloaded worker is asked again after this at the latest, whatever it said."""

DEFAULT_RETRY_AFTER_S: Final = 1.0

MOST_LOST_S: Final = 600.0
"""A failed attempt counts as having lost no more, whatever a clock or a peer says."""

_OVERLOADED: Final = 429
_UNAVAILABLE: Final = 503
_NOT_IMPLEMENTED: Final = 501
SUCCESS: Final = range(200, 300)
_SERVER_ERRORS: Final = range(500, 600)


class Verdict(IntEnum):
    """Whose doing the end of an attempt was. The numbers travel between replicas.

    UNKNOWN: it ended without an answer, e.g. because the client left: no verdict on anybody.
    SERVED: a whole answer of 2xx, the only one that teaches. CLIENT: the request cannot be served
    as sent. WORKER: an error, a cut, a reset, a timeout, garbage. OVERLOAD: the worker asks to be
    left alone for a while. PROMPT: the request failed at several workers that serve others, so
    what was noted of them for it is taken back.
    """

    UNKNOWN = 0
    SERVED = 1
    CLIENT = 2
    WORKER = 3
    OVERLOAD = 4
    PROMPT = 5


class Attempt(msgspec.Struct, frozen=True):
    """What became of one attempt. `kind` is a status or the way the connection failed.

    `lost_s` is how long the client waited for nothing. `retry_after_s` is what an overloaded
    worker asked for, 0 for nothing.
    """

    verdict: Verdict
    kind: str = ""
    lost_s: float = 0.0
    retry_after_s: float = 0.0


SERVED: Final = Attempt(Verdict.SERVED)
UNKNOWN: Final = Attempt(Verdict.UNKNOWN)
PROMPT: Final = Attempt(Verdict.PROMPT)


def judge_status(status: int, retry_after_s: float = 0.0) -> Verdict:
    """Return whose doing an answer of that HTTP status is; 503 is overload if it names a time."""
    if status in SUCCESS:
        return Verdict.SERVED
    if status == _OVERLOADED or (status == _UNAVAILABLE and retry_after_s > 0.0):
        return Verdict.OVERLOAD
    if status in _SERVER_ERRORS and status != _NOT_IMPLEMENTED:
        return Verdict.WORKER
    return Verdict.CLIENT


def status_attempt(status: int, lost_s: float = 0.0, retry_after_s: float = 0.0) -> Attempt:
    """Return what an answer of that status shows."""
    return Attempt(judge_status(status, retry_after_s), str(status), lost_s, retry_after_s)


def failed_attempt(
    kind: str, lost_s: float = 0.0, *, status: int = 0, retry_after_s: float = 0.0
) -> Attempt:
    """Return what an attempt that failed in the way `kind` shows; its `status` if it has one.

    "busy" is this router's own bound on connections: it shows nothing of the worker.
    """
    if status:
        return status_attempt(status, lost_s, retry_after_s)
    return Attempt(Verdict.UNKNOWN if kind == "busy" else Verdict.WORKER, kind, lost_s)
