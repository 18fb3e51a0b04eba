"""What the answer's head tells the client of the decision."""

from typing import Final

from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.chat.prompt_form import REASONS
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.members.worker_info import Trust
from kvmesh.transport.http.wire.headers import Header

PANIC_HEADER: Final[Header] = (b"x-kvmesh-panic", b"1")
_TRUST_HEADERS: Final = {trust: (b"x-kvmesh-trust", trust.value.encode()) for trust in Trust}
_OVERLAP_AT: Final = 1
_TRUST_AT: Final = 2
_UNFORESEEN_HEADERS: Final = {
    reason: (_TRUST_HEADERS[Trust.APPROX], (b"x-kvmesh-unforeseen", reason.encode()))
    for reason in REASONS
}
"""In place of the trust in a worker, where what it reuses of the request is not foretold."""


def decision_headers(context: RoutingContext, one: Dispatched) -> list[Header]:
    """Return the headers about the last decision of a request."""
    placed = one.placed
    assert placed is not None, "only what was decided is answered"
    record = placed.record
    trust, predictions = context.workers.info(record.worker).trust, context.routing.predictions
    if record.worker in predictions.estimated:
        trust = predictions.word(record.worker, trust)
    own: list[Header] = [
        (b"x-kvmesh-worker", record.worker.encode()),
        (b"x-kvmesh-overlap-blocks", b"%d" % record.overlap_blocks),
        _TRUST_HEADERS[trust],
        *context.fixed_headers,
    ]
    if context.workers.panic:
        own.append(PANIC_HEADER)
    if one.unforeseen:
        own[_TRUST_AT : _TRUST_AT + 1] = _UNFORESEEN_HEADERS[one.unforeseen]
    if placed.inputs is not None and (arm := placed.inputs.made.arm) is not None:
        own.append((b"x-kvmesh-policy", arm.header))
    if one.veiled:
        del own[_OVERLAP_AT]
    return own
