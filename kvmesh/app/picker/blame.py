"""What a gateway's word of a response shows of the worker that it came from."""

from typing import Final

from kvmesh.transport.grpc.extproc_messages import Attributes
from kvmesh.transport.http.upstream.messages import Kind, Stage, UpstreamFailure

DETAILS: Final = "response.code_details"
"""The attribute by which a gateway says who made a response, and why.

Source: Envoy, "Response code details".
"""

_VIA_UPSTREAM: Final = "via_upstream"
_RESET: Final = "upstream_reset_before_response_started"
_TIMEOUTS: Final = ("response_timeout", "upstream_response_timeout", "upstream_per_try_timeout")
_CONNECTING: Final = ("connection_failure", "connection_timeout", "overflow")


def read_word(
    status: int, attributes: Attributes | None, origin: str, retry_after_s: float
) -> UpstreamFailure | None:
    """Return how the worker at `origin` failed; None: the gateway itself made this response."""
    details = str((attributes or {}).get(DETAILS, _VIA_UPSTREAM)).lower()
    if details.startswith(_VIA_UPSTREAM):
        return UpstreamFailure(
            "mid_response",
            "status",
            f"{origin}: answered {status}",
            origin,
            status=status,
            retry_after_s=retry_after_s,
        )
    kind: Kind
    stage: Stage = "after_send"
    if details.startswith(_TIMEOUTS):
        kind = "timeout"
    elif details.startswith(_RESET):
        connecting = any(word in details for word in _CONNECTING)
        kind, stage = ("refused", "before_send") if connecting else ("reset", "after_send")
    else:
        return None
    return UpstreamFailure(stage, kind, f"{origin}: the gateway says {details[:200]}", origin)
