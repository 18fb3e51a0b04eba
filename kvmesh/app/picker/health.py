"""What a picker tells gateways and kubelets of itself, by `grpc.health.v1`."""

from collections.abc import Callable
from typing import Final

from kvmesh.app.members.warning_lines import WORKERLESS

PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS: Final = "liveness"
READY_NAMES: Final = frozenset({"", PROCESSOR, "readiness", "inference-extension"})
"""The whole server, what gateways call, and the names that probes of GIE's charts ask for."""


class PickerHealth:
    """Serving while requests may come, or would be but for a worker; alive as long as it answers.

    A gateway does not ask a picker that does not serve: its clients would get an error of its own,
    at once, in place of a place in the queue or a 503 that says when to come again.
    Source: GIE's endpoint picker answers for `liveness`, `readiness` and, since its first releases,
    `inference-extension`.
    """

    def __init__(self, why_not: Callable[[], str]) -> None:
        self._why_not = why_not

    def __call__(self, service: str) -> bool | None:
        """Return whether the service serves; None for one that is not here."""
        if service == LIVENESS:
            return True
        if service not in READY_NAMES:
            return None
        why = self._why_not()
        return not why or why in WORKERLESS
